"""Talks to the child process that compares maths answers, and says how it failed where it did.

Blocking calls for one thread at a time; `MathJudge` keeps them off the event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Literal, TypedDict

from rolecall.core.errors import InfrastructureError

START_LIMIT_S = 60.0  # importing sympy takes seconds on a busy machine
COMMAND = (sys.executable, "-m", "rolecall.grading.math.worker")


Outcome = Literal["equal", "different", "readable", "unreadable", "memory", "timeout", "crash"]


class Reply(TypedDict):
    verdict: Outcome
    worn: bool  # the child came near its memory limit and is not worth keeping


class JudgeError(InfrastructureError):
    """The judge itself failed: the reward is unknown, not 0."""


class MathProcess:
    """One child process, started on first need and again after each kill."""

    def __init__(self, *, time_s: float, memory_bytes: int, command: Sequence[str]) -> None:
        self.time_s = time_s
        self.command = [*command, str(time_s), str(memory_bytes)]
        self.child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def ask(self, given: str | None, truth: str) -> Outcome:
        """Return the child's verdict, or "timeout" or "crash" when it gave none.

        Raises JudgeError if no child can be started.
        """
        if self.child is None or self.child.poll() is not None:
            self.kill()
            self._start()
        assert self.child is not None
        assert self.child.stdin is not None
        line = json.dumps({"given": given, "truth": truth}, ensure_ascii=False) + "\n"
        with contextlib.suppress(BrokenPipeError):  # the missing reply tells
            self.child.stdin.write(line.encode())
            self.child.stdin.flush()
        reply = self._read(self.time_s)
        if reply is None:
            ended = self.child.poll()
            self.kill()
            out_of_time = ended is None or ended == -signal.SIGXCPU
            return "timeout" if out_of_time else "crash"
        if reply["worn"] or reply["verdict"] == "memory":
            self.kill()
        return reply["verdict"]

    def kill(self) -> None:
        """End the child and all it started."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            for pipe in (self.child.stdin, self.child.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            self.child = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the child
        try:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
            ready = self._read(START_LIMIT_S)
        except OSError as error:
            self.kill()
            raise JudgeError(f"the maths worker cannot start: {error}") from error
        if ready is None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            self.kill()
            raise JudgeError(f"the maths worker cannot start: {lines[-1] if lines else 'no reply'}")

    def _read(self, limit_s: float) -> Reply | None:
        """Return one line of the child, or None if it ended or the time did."""
        assert self.child is not None
        assert self.child.stdout is not None
        received, deadline = b"", time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self.child.stdout.fileno(), 65536)
                if not chunk:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.child.wait(1.0)  # its end shows a moment after its pipe closed
                    return None
                received += chunk
        reply: Reply = json.loads(received)
        return reply
