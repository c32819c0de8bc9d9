"""Starts the programs of episodes: a function in a warm worker, a command, or one that listens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path

from rolecall.core.errors import RunEndingError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.optional import optional
from rolecall.gateway import warm_worker
from rolecall.runtime.forking.client import ForkEndedError, ForkServer, PreloadError, PythonError

log = logging.getLogger("rolecall")
HTTP_ACCEPTED = 202


class ProgramError(RuntimeError):
    """A program failed, or gave no answer."""


class WarmWorker:
    """A process that has imported what a function needs, and is forked for each episode.

    `function`: `path/to/file.py:name`; `python`: that runs it, by default this one.
    """

    def __init__(self, function: str, *, python: str = "") -> None:
        self.file, _, name = function.rpartition(":")
        path = str(Path(self.file).expanduser())
        script = Path(warm_worker.__file__)
        self._server = ForkServer(script, [path, name], label=self.file, python=python)

    async def start(self) -> None:
        """Start the process; raises RunEndingError if its file cannot be used."""
        try:
            await self._server.start()
        except PythonError as error:
            raise RunEndingError(f"workflow.python: {error}") from error
        except PreloadError as error:
            raise RunEndingError(f"workflow.function: {error}") from error

    async def run(self, task: JsonObject, environment: Mapping[str, str]) -> JsonValue:
        """Return what one call returns. Raises ProgramError; a cancelled call is killed."""
        await self.start()
        try:
            fork = await self._server.connect()
            try:
                fork.send({"environment": dict(environment), "task": task})
                result = await fork.receive()
            finally:
                fork.kill()
        except ForkEndedError as error:
            raise ProgramError("the program ended without an answer; was it killed?") from error
        if "error" in result:
            log.info("%s: %s", self.file, result.get("traceback", ""))
            raise ProgramError(result["error"])
        returned: JsonValue = result["returned"]
        return returned

    async def close(self) -> None:
        """End the process."""
        await self._server.close()


async def run_command(
    command: list[str], task: JsonObject, environment: Mapping[str, str]
) -> str | None:
    """Return the last line that a command prints. Raises ProgramError if its status is not 0."""
    with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
        file = Path(folder) / "task.json"
        file.write_text(json.dumps(task))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | dict(environment) | {"ROLECALL_TASK": str(file)},
            start_new_session=True,
        )
        try:
            output, errors = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = "".join(errors.decode(errors="replace").strip().splitlines()[-1:])
        raise ProgramError(f"{command[0]} ended with status {process.returncode}: {reason}")
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


async def call_url(url: str, task: JsonObject, finished: Awaitable[JsonValue]) -> JsonValue:
    """Send a task to a program that listens at an address, and return what it answers.

    With status 202 it has only begun; the value of `finished` is then what it says later. Raises
    ProgramError for any other status that is no success, and if it cannot be reached.
    """
    httpx = optional("httpx", extra="serve")
    ending = asyncio.ensure_future(finished)
    try:
        async with httpx.AsyncClient(timeout=None) as client:
            asking = asyncio.ensure_future(client.post(url, json=task))
            try:
                await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():  # it said so before it answered
                    return ending.result()
                answer = asking.result()
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        if answer.status_code == HTTP_ACCEPTED:
            return await ending
        if not answer.is_success:
            raise ProgramError(f"{url} answered with status {answer.status_code}: {answer.text}")
        returned: JsonValue = answer.json() if answer.content else None
        return returned
    except httpx.HTTPError as error:
        raise ProgramError(f"{url}: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ProgramError(f"{url} answered no JSON: {error}") from error
    finally:
        ending.cancel()
