"""Starts a fork server, and talks with its forks in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rolecall.core.json_types import JsonObject
from rolecall.runtime.call_tree import outside
from rolecall.runtime.forking import fork_server

log = logging.getLogger("rolecall")
START_S = 120.0  # for a server to import what its forks need
MOST_LINE = 16 << 20  # bytes of an answer


class PythonError(RuntimeError):
    """A Python cannot be run."""


class PreloadError(RuntimeError):
    """A fork server cannot import or use what its forks need."""


class ForkEndedError(RuntimeError):
    """A fork ended without an answer."""


class Fork:
    """A connection to one fork, and its process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._process_id = 0

    async def receive(self) -> JsonObject:
        """Return the next line that the fork writes; raises ForkEndedError if it has ended."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise ForkEndedError
        read: JsonObject = json.loads(line)
        return read

    async def receive_process_id(self) -> None:
        self._process_id = int((await self.receive())["pid"])

    def send(self, data: JsonObject) -> None:
        """Write a line for the fork to read."""
        self._writer.write(json.dumps(data).encode() + b"\n")

    def kill(self) -> None:
        """End the fork and all that it has started."""
        self._writer.close()
        if self._process_id:
            with suppress(ProcessLookupError):
                os.killpg(self._process_id, signal.SIGKILL)


class ForkServer:
    """A process that has imported what its forks need.

    `label`: what a line about it calls what it runs; `python`: that runs it, by default this one.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        label: str,
        python: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.script, self.arguments, self.label = script, list(arguments), label
        self.python = python or sys.executable
        self.environment = dict(environment or {})
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process unless it runs; raises PythonError and PreloadError."""
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            try:
                await outside(self._start())
            except BaseException:
                await self.close()
                raise

    async def connect(self) -> Fork:
        """Start a fork; raises ForkEndedError if it ends at once."""
        await self.start()
        fork = Fork(*await asyncio.open_unix_connection(self._address, limit=MOST_LINE))
        try:
            await fork.receive_process_id()
        except BaseException:
            fork.kill()
            raise
        return fork

    async def close(self) -> None:
        """End the process, which may be that of another event loop."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _address(self) -> str:
        assert self._folder is not None, "made by start"
        return f"{self._folder.name}/socket"

    async def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rolecall-")
        command = [self.python, str(Path(fork_server.__file__)), self._address, str(self.script)]
        try:
            self._process = subprocess.Popen(
                [*command, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
            )
        except OSError as error:
            raise PythonError(f"{self.python!r} cannot be run: {error.strerror}") from error
        output = asyncio.StreamReader(limit=MOST_LINE)
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(output)
        await loop.connect_read_pipe(lambda: protocol, self._process.stdout)
        problem = await self._read_problem(output)
        if problem:
            raise PreloadError(problem)
        outside(_log_output(output, self.label))

    async def _read_problem(self, output: asyncio.StreamReader) -> str:
        """Return what the server finds wrong, once it has imported what its forks need."""
        last = ""
        try:
            async with asyncio.timeout(START_S):
                while line := (await output.readline()).decode(errors="replace"):
                    if line.startswith('{"problem": '):
                        return str(json.loads(line)["problem"])
                    last = line.strip()
        except TimeoutError:
            return f"{self.label} was not imported within {START_S:g} s"
        return f"{self.python} ended before it could run {self.label}: {last}"


async def _log_output(output: asyncio.StreamReader, label: str) -> None:
    """Write what forks print into the run's log."""
    with suppress(ValueError):  # a line that is too long
        while line := await output.readline():
            log.info("%s: %s", label, line.decode(errors="replace").rstrip())
