"""A tool that runs Python in a sandbox; files, and variables if asked for, last over an episode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool
from rolecall.core.tags import encodable
from rolecall.runtime.secret_texts import read_token
from rolecall.sandbox.base import Limits, Ran, Run, Sandbox, SandboxError, can_be_placed, try_out
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.fusion import Fusion
from rolecall.sandbox.interpreter import Interpreter, Played
from rolecall.tools.functions import tool


class Python:
    """Tool `python`: each call is a fresh process, in the same files for the whole episode.

    With `stateful` each agent has one process for the whole episode.
    """

    def __init__(
        self,
        url: str | None = None,
        token_env: str | None = None,
        packages: bool = True,
        wall_s: float = 10.0,
        memory_mb: int = 1024,
        stateful: bool = False,
        unenforced: list[str] | None = None,
    ) -> None:
        """url: address of a SandboxFusion server; by default bubblewrap on this machine.
        token_env: environment variable with that server's bearer token.
        packages: whether programs can import the packages that are installed here.
        wall_s: most seconds of a call.
        memory_mb: most memory of a call.
        stateful: whether variables last from call to call, for each agent its own; what the last
            line of a call says is shown, and a Python that a limit ended begins anew.
        unenforced: limits that this machine need not hold: memory, syscalls.
        """
        if url is not None and (unenforced or not packages):
            raise ValueError(
                "packages and unenforced have no effect with url: that server decides; remove them"
            )
        if token_env is not None and url is None:
            raise ValueError("token_env has no effect without url; remove it, or set url")
        if url is not None and stateful:
            raise ValueError("stateful has no effect with url: that server keeps no variables")
        self.is_private = stateful  # to each agent
        self._token = read_token(token_env)
        self.limits = Limits(wall_s=wall_s, memory_mb=memory_mb)
        self._url, self._packages, self._unenforced = url, packages, tuple(unenforced or ())
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._made()
        return self._sandbox

    def _made(self) -> Sandbox:
        if self._url is not None:
            return Fusion(self._url, token=self._token)
        return Bubblewrap(packages=self._packages, unenforced=self._unenforced)

    async def check(self) -> None:
        """Check that a program can be run; raises SandboxError otherwise."""
        sandbox = self._made()  # one of its own, because connections belong to an event loop
        try:
            await try_out(sandbox, self.limits)
        except SandboxError as error:
            if self._url is None:
                raise
            raise SandboxError(
                f"{error}; start a server there (`rolecall serve sandbox`), or leave `url` out to "
                "run programs on this machine"
            ) from error

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        if self.is_private:
            async with self._interpreter(seed) as python_that_stays:
                yield [python_that_stays]
            return
        files: dict[str, bytes] = {}

        @tool(ends_itself=True)
        async def python(code: str) -> str:
            """Run Python code; you see what it prints."""
            run = Run(code=code, files=dict(files), fetch=("**",), limits=self.limits)
            ran = await self.sandbox.run(run)
            if ran.status != "timeout":  # else what is there may be half written
                kept = {path for path in ran.files if can_be_placed(path)}
                files.clear()
                files.update((path, ran.files[path]) for path in kept)
                ran = replace(ran, left_out=(*ran.left_out, *sorted(ran.files.keys() - kept)))
            return describe_run(ran)

        yield [python]

    @asynccontextmanager
    async def _interpreter(self, seed: int) -> AsyncIterator[Tool]:
        assert isinstance(self.sandbox, Bubblewrap)
        interpreter = Interpreter(self.sandbox, self.limits, seed=seed)

        @tool(ends_itself=True)
        async def python(code: str) -> str:
            """Run Python code; you see what it prints. Variables stay for your next call."""
            return describe_call(await interpreter.run(code))

        try:
            yield python
        finally:
            await interpreter.close()


def describe_call(played: Played) -> str:
    """Return what a call of a Python that stays printed and showed, as an agent reads it."""
    if played.ended is not None:
        return f"{describe_run(played.ended)}\n[your variables are gone; files have stayed]"
    assert played.cell is not None
    cell = played.cell
    shown = [value["text/plain"] for value in cell.display if "text/plain" in value]
    errors = ["".join(error["traceback"]).rstrip("\n") for error in cell.error]
    parts = [cell.stdout.rstrip("\n"), cell.stderr.rstrip("\n"), *shown, *errors]
    return "\n".join(filter(None, parts)) or "[no output]"


def describe_run(ran: Ran) -> str:
    """Return what a program printed and, in the last line, how it ended, as an agent reads it."""
    parts = [text for text in (ran.stdout.rstrip("\n"), ran.stderr.rstrip("\n")) if text]
    if ran.left_out:
        names = encodable(", ".join(ran.left_out))
        parts.append(f"[not kept, for their sizes, their number or their names: {names}]")
    if ran.status == "timeout":
        parts.append(f"[stopped after {ran.wall_s:.0f} s]")
    elif ran.limit:
        parts.append(f"[stopped: the {ran.limit} limit]")
    elif ran.return_code:
        parts.append(f"[exit status {ran.return_code}]")
    return "\n".join(parts) or "[no output]"
