"""Starts a bwrap process that waits for a job; `close` leaves no trace of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess

from rolecall.sandbox.base import SandboxError
from rolecall.sandbox.bubblewrap_command import SandboxPlan
from rolecall.sandbox.cgroups import MemoryGroup

START_S = 30.0  # a busy machine may take long to start a process, or to end one
FORBIDDEN = (
    "; this system may forbid user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, or a container with less seccomp)"
)


class Confined:
    """The processes, the memory and the user of one sandbox.

    Linux ends a sandbox with the thread that started it, so that thread must live on.
    """

    def __init__(self, plan: SandboxPlan, *, disk_mb: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None  # open file that stands for pid 1 of the sandbox
        self._admitted = False
        self.group: MemoryGroup | None = None
        self.control, control = socket.socketpair()
        report, info = os.pipe()
        wait, go = os.pipe()
        syscalls = os.memfd_create("syscalls")
        os.write(syscalls, plan.filter or b"")
        os.lseek(syscalls, 0, os.SEEK_SET)
        handed = {"control": control.fileno(), "info": info, "go": wait, "syscalls": syscalls}
        try:
            try:
                self.group = plan.groups.new() if plan.groups else None
                self._process = subprocess.Popen(
                    plan.command(disk_mb=disk_mb, **handed),
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=list(handed.values()),
                    env={},
                    cwd="/",
                )
            finally:
                control.close()
                for fd in (info, wait, syscalls):
                    os.close(fd)
            self._admit(report, go, maps=plan.user_maps())
        except OSError as error:
            self.close()
            raise SandboxError(f"a sandbox cannot be started: {error}") from error
        except BaseException:
            self.close()
            raise
        finally:
            os.close(report)
            os.close(go)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """End all its processes; may be called from any thread."""
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def end_and_report(self) -> str:
        """End it, and what it had to say about itself."""
        self.kill()
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), True)
        return self.process.stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        """Close the sandbox; raises SandboxError if its processes do not end."""
        self.kill()
        if self._process is not None:
            if not self._admitted:
                self._process.kill()
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired as error:
                raise SandboxError("a sandbox does not end when it is killed") from error
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
        self.control.close()
        if self._first is not None:
            os.close(self._first)
            self._first = None
        if self.group is not None:
            self.group.remove()
            self.group = None

    def _admit(self, told: int, go: int, *, maps: dict[str, str]) -> None:
        """Say who its users are outside and which memory is its own, then let it start."""
        if not select.select([told], [], [], START_S)[0]:
            raise SandboxError("bubblewrap does not start")
        with open(told, "rb", closefd=False) as answered:
            answer = answered.read()
        if not answer:
            words = self.end_and_report()
            hint = FORBIDDEN if "ermission" in words or "namespace" in words else ""
            raise SandboxError(f"bubblewrap cannot make a sandbox: {words}{hint}")
        pid = json.loads(answer)["child-pid"]
        self._first = os.pidfd_open(pid)
        for name, text in maps.items():
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(text)
        if self.group is not None:
            self.group.join(pid)
        os.write(go, b"1")
        self._admitted = True
