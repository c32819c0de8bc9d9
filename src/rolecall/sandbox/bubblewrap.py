"""Runs every program in a bubblewrap sandbox of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar
from weakref import WeakSet

from rolecall.sandbox.base import OWN_FILES, Limits, Ran, Run, SandboxError
from rolecall.sandbox.box import Box
from rolecall.sandbox.bubblewrap_command import SandboxPlan, plan_sandboxes


class Pool:
    """Keeps `warm` boxes waiting from the first `take` on; each one taken is replaced."""

    def __init__(self, plan: SandboxPlan, *, warm: int, disk_mb: int) -> None:
        self._plan = plan
        self._warm = warm
        self._disk_mb = disk_mb  # of the boxes that wait: a box cannot change its disk
        self._waiting: deque[Future[Box]] = deque()
        self._lock = threading.Lock()
        # Linux ends a box with the thread that made it: these live as long as the pool.
        self._makers = ThreadPoolExecutor(max(1, warm), thread_name_prefix="sandbox-maker")

    def take(self, *, disk_mb: int) -> Box:
        """Take a box for one job, which the caller closes; raises SandboxError if there is none."""
        if not self._warm or disk_mb != self._disk_mb:
            return self._make(disk_mb)
        with self._lock:
            while len(self._waiting) <= self._warm:
                self._waiting.append(self._makers.submit(self._make, self._disk_mb))
            future = self._waiting.popleft()
        box = future.result()
        if box.alive:
            return box
        box.close()
        return self._make(disk_mb)

    def close(self) -> None:
        """End the boxes that wait; blocks until they are gone."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for future in waiting:
            if not future.cancel() and future.exception() is None:
                future.result().close()
        self._makers.shutdown()

    def _make(self, disk_mb: int) -> Box:
        return Box(self._plan, disk_mb=disk_mb)


Result = TypeVar("Result")
PROGRAM = OWN_FILES
BASH = "/usr/bin/bash"
# A script that names its encoding must be a file that can be read twice.
OPEN: WeakSet[Bubblewrap] = WeakSet()  # what nobody closes is closed as the process ends
ENCODING = re.compile(r"[ \t\f]*#.*?coding[:=]")


class Bubblewrap:
    """Runs programs on this machine, where nothing of this machine is theirs.

    A program has an empty directory, the system and a Python read-only, no network, no process
    but its own, and the limits of its `Run`. Raises SandboxError where this cannot be had.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,  # of a virtual environment or of the system
        packages: bool = True,  # what is installed in that virtual environment is importable
        concurrency: int = 0,  # runs at once; 0: one for each processor
        warm: int = 2,  # sandboxes kept waiting, with a Python already started
        disk_mb: int = Limits().disk_mb,  # of those; a run with another size waits for its own
        unenforced: Collection[str] = (),  # limits it may do without: "memory", "syscalls"
        cgroup: Path | None = None,  # where to make control groups; None: below our own
    ) -> None:
        self.plan = plan_sandboxes(python, packages=packages, unenforced=unenforced, cgroup=cgroup)
        self.concurrency = concurrency or os.cpu_count() or 1
        self._pool = Pool(self.plan, warm=warm, disk_mb=disk_mb)
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="sandbox")
        self._calls: set[Boxes] = set()
        self.pid = os.getpid()
        OPEN.add(self)
        program = self.plan.python.program
        self._commands = {"python": [program, f"{PROGRAM}.py"]}
        if os.path.exists(BASH):
            self._commands["bash"] = [BASH, f"{PROGRAM}.sh"]
        if self.plan.python.has_pytest:
            options = ["-q", "-p", "no:cacheprovider"]
            self._commands["pytest"] = [program, "-m", "pytest", *options, f"{PROGRAM}.py"]

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self._commands)

    async def run(self, run: Run) -> Ran:
        """Run a program, which cancelling kills; raises ValueError for an unknown language."""
        return await self.work(lambda boxes: boxes.open(run).finish())

    async def work(self, work: Callable[[Boxes], Result]) -> Result:
        """Return the result of `work`, which may block: it has a thread, and its boxes end with
        it.
        """
        boxes = Boxes(self._pool, self.command)
        self._calls.add(boxes)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, boxes.use, work)
        finally:
            self._calls.discard(boxes)
            boxes.stop()

    def hold(self) -> Boxes:
        """Return boxes that stay open from call to call, until they are released."""
        boxes = Boxes(self._pool, self.command)
        self._calls.add(boxes)
        return boxes

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def release(self, boxes: Boxes) -> None:
        """Kill what runs in boxes that were held, and close them."""
        boxes.stop()
        try:
            await self.in_thread(lambda: boxes.use(lambda _: None))
        finally:
            self._calls.discard(boxes)

    def command(self, run: Run) -> list[str]:
        """Return the command that a sandbox executes; nothing for the Python that waits in it.

        Raises ValueError for a language that is not offered and a file's name that is taken.
        """
        if run.language not in self._commands:
            offered = ", ".join(self._commands)
            raise ValueError(f"language {run.language!r} is not offered here; offered: {offered}")
        for path in run.files:
            if PurePosixPath(path).parts[0].startswith(PROGRAM):
                raise ValueError(f"no file may be named {path!r}: it is the program's own name")
        first_lines = run.code.split("\n", 2)[:2]
        if run.language == "python" and not any(map(ENCODING.match, first_lines)):
            return []
        return self._commands[run.language]

    async def close(self) -> None:
        """Kill what runs and end the sandboxes that wait."""
        await asyncio.to_thread(self.shut)

    def shut(self) -> None:
        """Close as `close` does, and block."""
        for boxes in list(self._calls):
            boxes.stop()
        self._threads.shutdown()
        self._pool.close()
        OPEN.discard(self)


@atexit.register
def _end_all() -> None:
    for sandbox in list(OPEN):
        if sandbox.pid == os.getpid():  # not in a process that was forked from the owner
            sandbox.shut()


class Boxes:
    """The boxes of one call: used in its thread, stopped from any."""

    def __init__(self, pool: Pool, command: Callable[[Run], list[str]]) -> None:
        self._pool = pool
        self._command = command
        self._lock = threading.Lock()
        self._boxes: list[Box] = []
        self._stopped = False

    def open(self, run: Run, *, talks: bool = False) -> Box:
        """Return a box that has begun with `run`. Raises ValueError for a run that cannot be."""
        command = self._command(run)
        box = self._pool.take(disk_mb=run.limits.disk_mb)
        with self._lock:
            self._boxes.append(box)
            if self._stopped:
                raise SandboxError("the call was cancelled")
        box.begin(run, command=command, talks=talks)
        return box

    def use(self, work: Callable[[Boxes], Result]) -> Result:
        try:
            return work(self)
        finally:
            with self._lock:
                boxes, self._boxes = self._boxes, []
            for box in boxes:
                box.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for box in self._boxes:
                box.kill()
