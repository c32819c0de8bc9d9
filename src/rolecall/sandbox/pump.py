"""Moves bytes between open files and memory until something happens or time is up."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import IO

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
