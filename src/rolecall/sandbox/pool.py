"""Makes boxes from a plan ahead of the calls, where there is time for it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from rolecall.sandbox.box import Box
from rolecall.sandbox.bubblewrap_command import SandboxPlan


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
