"""Starts vLLM's process, sends it calls, and says how it ended.

A thread starts the process and reads its answers for as long as it lives: Linux sends the signal
of a parent's death when the very thread ends that started a process. Answers reach whoever waits
for them in any event loop, or in none.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from rolecall.core.errors import InfrastructureError
from rolecall.engines.vllm import wire
from rolecall.engines.vllm.engine_args import Launch, environment
from rolecall.runtime.logs import read_lines
from rolecall.runtime.scratch import MEMORY

CLOSE_S = 15.0  # until a process that was told to end is killed
TIDY_S = 5.0  # until what it had started is killed: one of them removes shared memory
LAST_LINES = 12
MEETINGS = "vllm_dist_*"


@dataclass(frozen=True, slots=True)
class Call:
    """Holds what was asked for; its result comes into a future."""

    number: int
    future: Future[Any]


class VllmProcess:
    """vLLM's process and the calls that it has not answered yet."""

    def __init__(self, launch: Launch, *, scratch: Path, log: Path, start_timeout_s: float) -> None:
        self._launch, self._scratch, self.log = launch, scratch, log
        self._meetings: list[str] = []
        self._start_timeout_s = start_timeout_s
        self.ready: Future[int] = Future()  # the most tokens of a row
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._gone = ""  # why it answers nothing any more
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    def call(self, method: str, **arguments: Any) -> Call:
        """Send a call to the process; raises InfrastructureError if the process has ended."""
        call = Call(next(self._numbers), Future())
        with self._lock:
            if self._gone:
                raise InfrastructureError(self._gone)
            self._waiting[call.number] = call.future
        self._outbox.put(wire.pack((call.number, method, arguments)))
        return call

    def drop(self, call: Call) -> None:
        """Nobody waits for it any more; vLLM forgets it."""
        with self._lock:
            waiting = self._waiting.pop(call.number, None)
        if waiting is not None:
            waiting.cancel()
            self._outbox.put(wire.pack((call.number, "drop", {})))

    def close(self) -> None:
        """End the process and all that it has started; returns when they have ended."""
        self._closing = True
        if self.ready.done():
            self._outbox.put(wire.pack((0, "close", {})))
            self._thread.join(CLOSE_S)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        begins = self.log.stat().st_size if self.log.exists() else 0
        try:
            how = self._talk()
        except Exception as error:
            how = f"could not be talked to: {type(error).__name__}: {error}"
            if self._process is not None:
                _reaped(self._process, 0.0)
        for shared in (file for name in self._meetings for file in MEMORY.glob(f"{name}-*")):
            shared.unlink(missing_ok=True)
        lines = read_lines(self.log, begins=begins)
        cause = "" if self.ready.done() else _cause(lines)
        last = "\n".join(lines[-LAST_LINES:])
        end = f"its log ends with:\n{last}" if last else "its log is empty"
        with self._lock:
            message = f"vLLM's process {how}{cause}; {end}"
            self._gone = "the vLLM engine was closed" if self._closing else message
            waiting = [self.ready, *self._waiting.values()]
            self._waiting = {}
        for future in waiting:
            _settle(future, False, wire.Failure("engine", self._gone))

    def _talk(self) -> str:
        """Start the process and deliver its answers until it ends; returns how it did."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self.log.open("ab") as log:
                self._process = process = self._spawn(theirs, log)
            if self._closing:  # `close` may have looked for it before it was there
                process.kill()
            ours.settimeout(self._start_timeout_s)
            how, patience_s = "ended while it started", CLOSE_S
            try:
                with suppress(ConnectionError):  # it has ended at once: so `read` says too
                    ours.sendall(wire.pack(self._launch))
                first = wire.read(ours)
            except TimeoutError:
                limit = f"{self._start_timeout_s:g} s (engine.start_timeout_s)"
                how, patience_s, first = f"did not start within {limit}", 0.0, None
            if first is not None:
                # On a CPU the ranks of tensor_parallel name shared memory, which they leave there,
                # after the file at which they meet.
                self._meetings = [file.name for file in self._scratch.glob(MEETINGS)]
                ours.settimeout(None)
                sender = threading.Thread(target=self._send, args=(ours,), daemon=True)
                sender.start()
                _settle(self.ready, *first[1:])
                how = "ended"
                while (message := wire.read(ours)) is not None:
                    self._deliver(*message)
            self._outbox.put(None)
        return f"{how} ({_reaped(process, patience_s)})"

    def _spawn(self, connection: socket.socket, log: BinaryIO) -> subprocess.Popen[bytes]:
        number = str(connection.fileno())
        return subprocess.Popen(
            [sys.executable, "-m", "rolecall.engines.vllm.child", number, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(connection.fileno(),),
            start_new_session=True,  # a Ctrl-C in the terminal is the driver's to answer
            env=environment(self._launch, scratch=self._scratch),
        )

    def _send(self, connection: socket.socket) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                connection.sendall(message)
            except OSError:  # it has ended: `_run` tells all who wait
                return

    def _deliver(self, number: int, done: bool, told: Any) -> None:
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            _settle(future, done, told)


def _settle(future: Future[Any], done: bool, told: Any) -> None:
    """Give a future its result or its error, unless it has one or nobody waits for it."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if done:
        future.set_result(told)
    else:
        kind = ValueError if told.kind == "value" else InfrastructureError
        future.set_exception(kind(told.text))


def _reaped(process: subprocess.Popen[bytes], patience_s: float) -> str:
    """Return how the process ended, killed if late. What it had started ends with it."""
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    until = time.monotonic() + TIDY_S
    # The number of a group is not given again while there are processes in it.
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _cause(lines: list[str]) -> str:
    """Return the first error of a log; those that follow only report it."""
    matches = (re.search(r"(?<![\w.])[\w.]*(Error|Exception)(: .+|$)", line) for line in lines)
    return next((f": {match[0]}" for match in matches if match), "")
