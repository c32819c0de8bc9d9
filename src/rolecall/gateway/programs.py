"""Starts the programs of episodes: a function in a warm worker, a command, or one that listens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path

from rolecall.core.errors import RunEndingError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.optional import optional
from rolecall.gateway import warm_worker
from rolecall.runtime.call_tree import outside

log = logging.getLogger("rolecall")
START_S = 120.0  # for a worker to import what a program needs
HTTP_ACCEPTED = 202
MOST_LINE = 16 << 20  # bytes of an answer


class ProgramError(RuntimeError):
    """A program failed, or gave no answer."""


class WarmWorker:
    """A process that has imported what a function needs, and is forked for each episode.

    `function`: `path/to/file.py:name`; `python`: that runs it, by default this one.
    """

    def __init__(self, function: str, *, python: str = "") -> None:
        self.file, _, self.function = function.rpartition(":")
        self.python = python or sys.executable
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process; raises RunEndingError if its file cannot be used."""
        async with self._starting:
            if self._process is not None:
                return
            self._folder = tempfile.TemporaryDirectory(prefix="rolecall-")
            script, path = str(Path(warm_worker.__file__)), str(Path(self.file).expanduser())
            try:
                process = await asyncio.create_subprocess_exec(
                    self.python, script, self._address, path, self.function,
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
            except OSError as error:
                message = f"workflow.python: {self.python!r} cannot be run: {error.strerror}"
                raise RunEndingError(message) from error
            self._process = process
            problem = await self._read_problem(process)
            if problem:
                raise RunEndingError(f"workflow.function: {problem}")
            outside(_log_output(process, self.file))

    async def run(self, task: JsonObject, environment: Mapping[str, str]) -> JsonValue:
        """Return what one call returns. Raises ProgramError; a cancelled call is killed."""
        await self.start()
        reader, writer = await asyncio.open_unix_connection(self._address, limit=MOST_LINE)
        process_id = 0
        try:
            line = json.dumps({"environment": dict(environment), "task": task})
            writer.write(line.encode() + b"\n")
            process_id = int((await _read_line(reader))["pid"])
            result = await _read_line(reader)
        finally:
            writer.close()
            if process_id:
                with suppress(ProcessLookupError):
                    os.killpg(process_id, signal.SIGKILL)  # what it has started, too
        if "error" in result:
            log.info("%s: %s", self.file, result.get("traceback", ""))
            raise ProgramError(result["error"])
        returned: JsonValue = result["returned"]
        return returned

    async def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _address(self) -> str:
        assert self._folder is not None, "made by start"
        return f"{self._folder.name}/socket"

    async def _read_problem(self, process: asyncio.subprocess.Process) -> str:
        """Return what the worker finds wrong with its file, once it has imported its modules."""
        assert process.stdout is not None
        output = ""
        try:
            async with asyncio.timeout(START_S):
                while line := (await process.stdout.readline()).decode(errors="replace"):
                    if line.startswith('{"problem": '):
                        return str(json.loads(line)["problem"])
                    output = line.strip()
        except TimeoutError:
            return f"{self.file} was not imported within {START_S:g} s"
        return f"{self.python} ended before it could run {self.file}: {output}"


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
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():  # it said so before it answered
                asking.cancel()
                return ending.result()
            answer = asking.result()
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


async def _read_line(reader: asyncio.StreamReader) -> JsonObject:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ProgramError("the program ended without an answer; was it killed?")
    read: JsonObject = json.loads(line)
    return read


async def _log_output(process: asyncio.subprocess.Process, file: str) -> None:
    """Write what programs print into the run's log."""
    assert process.stdout is not None
    with suppress(ValueError):  # a line that is too long
        while line := await process.stdout.readline():
            log.info("%s: %s", file, line.decode(errors="replace").rstrip())
