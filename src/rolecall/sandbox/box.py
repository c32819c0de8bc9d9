"""Runs one job in one sandbox and reports what was seen of its end.

A box is a sandbox with a Python waiting inside. It is made ahead of its job, takes one, and is
gone with it. Its calls block, so they are made in a thread of `Bubblewrap`'s.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import IO

from rolecall.sandbox.base import Limit, Ran, Run, SandboxError
from rolecall.sandbox.bubblewrap_command import SandboxPlan
from rolecall.sandbox.confined import START_S, Confined
from rolecall.sandbox.drain import Drain
from rolecall.sandbox.inside import init

CHUNK = 1 << 16  # bytes; what a pipe holds


class Pump:
    """Reads each source as it fills and writes one target as it empties. Blocks its thread."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._waiting = bytearray()  # to be written to the target
        self._ends = False  # the target is closed when all is written
        self._writes = False  # the selector watches the target
        self._sources = 0  # that have not ended
        self._selector = selectors.DefaultSelector()
        os.set_blocking(target.fileno(), False)

    def read(self, source: int, sink: Callable[[bytes], object]) -> None:
        os.set_blocking(source, False)
        self._selector.register(source, selectors.EVENT_READ, sink)
        self._sources += 1

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Add to what the target gets; after the last it sees the end of its input."""
        if self._ends:
            return
        self._waiting += data
        self._ends = last
        if not self._writes:
            self._selector.register(self._target, selectors.EVENT_WRITE, None)
            self._writes = True

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Go on until `until()` or the end of all sources; False if the deadline came first."""
        while self._sources and not until():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            for key, _ in self._selector.select(left_s):
                if key.data is None:
                    self._feed()
                else:
                    self._take(key.fd, key.data)
        return True

    def close(self) -> None:
        self._selector.close()

    def _take(self, source: int, sink: Callable[[bytes], object]) -> None:
        try:
            chunk = os.read(source, CHUNK)
        except ConnectionResetError:  # it ended before it read all that it was told
            chunk = b""
        if chunk:
            sink(chunk)
        else:
            self._selector.unregister(source)
            self._sources -= 1

    def _feed(self) -> None:
        try:
            written = os.write(self._target.fileno(), self._waiting[:CHUNK])
            del self._waiting[:written]
        except BrokenPipeError:  # nobody will read the rest
            self._waiting.clear()
            self._ends = True
        if not self._waiting:
            self._selector.unregister(self._target)
            self._writes = False
            if self._ends:
                self._target.close()


COLLECT_S = 10.0  # from a program's end to that of its box
MOST_SAID = 8 << 20  # bytes of one line
LENGTH = init.LENGTH


class Box:
    """One sandbox from before its job until after it. Raises SandboxError."""

    def __init__(self, plan: SandboxPlan, *, disk_mb: int) -> None:
        self.disk_mb = disk_mb
        self._confined = Confined(plan, disk_mb=disk_mb)
        stdin = self._confined.process.stdin
        assert stdin is not None
        self._pump = Pump(stdin)
        self._report = bytearray()
        self._lines = bytearray()  # of a program that is talked with

    @property
    def alive(self) -> bool:
        return self._confined.process.poll() is None

    def begin(self, run: Run, *, command: list[str], talks: bool = False) -> None:
        """Give the box its job; an empty command is the Python that waits.

        A program that `talks` is asked with `say` and heard with `hear`.
        """
        self._run, confined = run, self._confined
        limits, memory = run.limits, run.limits.memory_mb << 20
        if confined.group is not None:
            confined.group.limit(memory)
        numbers = [limits.cpu_s, limits.processes, 0 if confined.group else memory]
        numbers += [limits.num_files, limits.file_mb << 20]
        # What is not text is the program's fault, and for its Python to say.
        program = command[-1] if command else f"{init.PROGRAM}.new"
        code = run.code.encode(errors="surrogatepass")
        job = ["\0".join(command).encode(), " ".join(map(str, numbers)).encode()]
        job.append("\0".join(run.fetch).encode())
        for path, content in {program: code, **run.files}.items():
            job += [path.encode(), content]
        confined.control.settimeout(START_S)
        try:
            confined.control.sendall(b"".join(map(_framed, [str(len(job)).encode(), *job])))
        except OSError as error:
            raise SandboxError(f"a sandbox took no job: {confined.end_and_report()}") from error
        self._started = time.monotonic()
        self._out, self._err = Drain(limits.output_bytes), Drain(limits.output_bytes)
        process = confined.process
        assert process.stdout is not None
        assert process.stderr is not None
        self._pump.read(process.stdout.fileno(), self._hold if talks else self._out.add)
        self._pump.read(process.stderr.fileno(), self._err.add)
        self._pump.read(confined.control.fileno(), self._report.extend)
        self._pump.write((run.stdin or "").encode(errors="surrogatepass"), last=not talks)

    def say(self, line: bytes) -> None:
        self._pump.write(line + b"\n")

    def hear(self, deadline: float) -> bytes | None:
        """Return the program's next line, or None if it ended, said too much or was too late."""
        self._pump.run(lambda: b"\n" in self._lines or len(self._lines) > MOST_SAID, deadline)
        line, newline, rest = self._lines.partition(b"\n")
        if not newline:
            return None
        self._lines[:] = rest
        return bytes(line)

    def finish(self, *, stop: bool = False, within_s: float | None = None) -> Ran:
        """Wait for the program's end, at most for its wall time; `stop` ends it now.

        `within_s`: from now on, in place of the wall time since its start.
        """
        self._pump.write(b"", last=True)
        deadline = self._started + self._run.limits.wall_s
        if within_s is not None:
            deadline = time.monotonic() + within_s
        deadline = 0.0 if stop else deadline
        late = not self._pump.run(lambda: bool(_frames(self._report, most=1)), deadline)
        wall_s = time.monotonic() - self._started
        if late:
            with contextlib.suppress(OSError):
                self._confined.control.send(b"stop")
        if not self._pump.run(lambda: False, time.monotonic() + COLLECT_S):
            self.kill()
            self._pump.run(lambda: False, time.monotonic() + COLLECT_S)
        return self._ran(late=late, wall_s=wall_s)

    def kill(self) -> None:
        """End everything in the box; may be called from any thread."""
        self._confined.kill()

    def close(self) -> None:
        self._pump.close()
        self._confined.close()

    def _hold(self, chunk: bytes) -> None:
        if len(self._lines) <= MOST_SAID:
            self._lines += chunk

    def _ran(self, *, late: bool, wall_s: float) -> Ran:
        limits, frames = self._run.limits, _frames(self._report)
        group = self._confined.group
        out_of_memory = group is not None and group.kills() > 0
        if not frames and not late and not out_of_memory:
            raise SandboxError(f"a sandbox ended without a report: {self._err.text().strip()}")
        # The kernel may have ended pid 1 itself for the memory of its files.
        ended = (frames[0] if frames else b"killed -9 0 0").decode().split()
        code, cpu_s, disk_full = int(ended[1]), float(ended[2]), ended[3] == "1"
        if ended[0] == "unreleased":
            raise SandboxError(f"a sandbox could not start its program: {os.strerror(code)}")
        if ended[0] == "unplaced":
            raise ValueError(f"the files of a run cannot be placed: {os.strerror(code)}")
        limit: Limit = ""
        if late:
            limit = "wall"
        elif code and out_of_memory:
            limit = "memory"
        elif code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s >= limits.cpu_s):
            limit = "cpu"
        elif code and disk_full:
            limit = "disk"
        files, left_out = _files(frames[1:])
        return Ran(
            status="timeout" if late else "error" if code else "finished",
            return_code=None if late else code,
            stdout=self._out.text(),
            stderr=self._err.text(),
            wall_s=wall_s,
            limit=limit,
            stdout_omitted=self._out.omitted_bytes,
            stderr_omitted=self._err.omitted_bytes,
            files=files,
            left_out=left_out,
        )


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(LENGTH, "big") + part


def _frames(data: bytearray, *, most: int | None = None) -> list[bytes]:
    """Return the whole parts that have arrived, at most the first `most`."""
    parts: list[bytes] = []
    at = 0
    while len(data) >= at + LENGTH and len(parts) != most:
        start = at + LENGTH
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data):
            break
        parts.append(bytes(data[start:at]))
    return parts


def _files(frames: list[bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return fetched content by path, and the paths that were left out."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    parts = iter(frames)
    for kind in parts:
        if kind == b"file":
            path = next(parts, b"").decode(errors="replace")
            files[path] = next(parts, b"")
        elif kind == b"left out":
            left_out.append(next(parts, b"").decode(errors="replace"))
    return files, tuple(left_out)
