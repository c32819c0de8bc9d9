"""Opens worlds of a foreign package, each in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.json_types import JsonValue, Options
from rolecall.environments.processes import world_script
from rolecall.runtime.forking.client import (
    Fork,
    ForkEndedError,
    ForkServer,
    PreloadError,
    PythonError,
)
from rolecall.runtime.per_loop import PerLoop


class WorldError(ValueError):
    """A world raised an error of its own."""

    def __init__(self, message: str, *, type: str) -> None:
        super().__init__(message)
        self.type = type  # name of the error's class


class WorldProcess:
    """One world in a process of its own."""

    def __init__(self, fork: Fork, *, id: str, timeout_s: float) -> None:
        self._fork, self._id, self._timeout_s = fork, id, timeout_s

    async def call(self, method: str, **arguments: JsonValue) -> Any:
        """Return what a method of the world returns.

        Raises WorldError for what it raises, InfrastructureError where it ends or hangs.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                self._fork.send({"method": method, "arguments": arguments})
                answer = await self._fork.receive()
        except TimeoutError as error:
            raise InfrastructureError(
                f"{self._id}: {method} took longer than step_timeout_s, {self._timeout_s:g} s"
            ) from error
        except ForkEndedError as error:
            raise InfrastructureError(
                f"{self._id}: its process ended during {method}; was it killed?"
            ) from error
        if "error" in answer:
            error_type, message = answer["error"]["type"], answer["error"]["message"]
            raise WorldError(f"{self._id}: {method}: {error_type}: {message}", type=error_type)
        return answer["returned"]

    def close(self) -> None:
        self._fork.kill()


class WorldProcesses:
    """The worlds of one environment; they fork from a process that has imported its package."""

    def __init__(
        self,
        package: Literal["gem", "textarena"],
        id: str,
        options: Options,
        *,
        python: str,
        step_timeout_s: float,
    ) -> None:
        self.package, self.id, self.options = package, id, options
        self.python, self.step_timeout_s = python, step_timeout_s
        self._all: list[ForkServer] = []
        self._servers = PerLoop(self._make_server)

    async def open(self, seed: int) -> WorldProcess:
        """Make a world; raises RunEndingError where none can be made."""
        try:
            fork = await self._servers.get().connect()
        except PythonError as error:
            raise RunEndingError(f"python: {error}") from error
        except PreloadError as error:
            raise RunEndingError(str(error)) from error
        except (ForkEndedError, OSError) as error:
            raise InfrastructureError(f"{self.id}: no process could be forked for it") from error
        process = WorldProcess(fork, id=self.id, timeout_s=self.step_timeout_s)
        try:
            await process.call("make", id=self.id, options=self.options, seed=seed)
        except BaseException as error:
            process.close()
            if isinstance(error, WorldError):
                raise RunEndingError(str(error)) from error
            raise
        return process

    async def check(self) -> None:
        """Make a world and end it; raises InfrastructureError where that fails."""
        try:
            (await self.open(0)).close()
        finally:
            await self.close()

    async def close(self) -> None:
        """End the processes of all event loops."""
        servers, self._all = self._all, []
        self._servers = PerLoop(self._make_server)
        for server in servers:
            await server.close()

    def _make_server(self) -> ForkServer:
        server = ForkServer(
            Path(world_script.__file__),
            [self.package, self.id],
            label=self.id,
            python=self.python,
            environment={"PYTHONHASHSEED": "0"},  # sets are in the same order each time
        )
        self._all.append(server)
        return server
