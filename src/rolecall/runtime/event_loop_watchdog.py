"""Names the code that holds the event loop: while it computes, no other episode goes on.

A thread consumes beats of the loop, produces a notice for each place that held it for a second,
and blocks nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rolecall.config.user_code_location import OURS, place_in

notices = logging.getLogger("rolecall.notices")
LONGEST_S = 1.0
EVERY_S = 0.2
# Parts of this package that work for single episodes; engines and learners work for all of them.
FOR_EPISODES = ("environments/", "retrieval/", "rewards/", "sandbox/", "tools/", "workflows/")


@contextmanager
def watch_loop() -> Iterator[None]:
    """Watch the running loop of this thread until the end of the block."""
    watch = _Watch(asyncio.get_running_loop())
    watch.start()
    try:
        yield
    finally:
        watch.ended.set()
        watch.join()


class _Watch(threading.Thread):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="held-loop", daemon=True)
        self.loop, self.of = loop, threading.get_ident()
        self.ended = threading.Event()
        self.beat = time.monotonic()
        self.named: set[str] = set()

    def run(self) -> None:
        while not self.ended.wait(EVERY_S):
            if time.monotonic() - self.beat > LONGEST_S:
                self._tell()
            self.loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        self.beat = time.monotonic()

    def _tell(self) -> None:
        frame = sys._current_frames().get(self.of)
        training = f"{OURS}/learning.py"
        outer = frame
        while outer is not None:
            if outer.f_code.co_filename == training:
                return
            outer = outer.f_back
        location = place_in(frame, ours=FOR_EPISODES)
        if location and location not in self.named:
            self.named.add(location)
            notices.warning(
                "%s has held the event loop for more than %g s, and every episode waits for it: "
                "await what waits, and compute in asyncio.to_thread",
                location, LONGEST_S,
            )  # fmt: skip
