"""Sets how this process treats freed memory: what the allocator keeps, and when Python collects."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rolecall.runtime.interrupts import ends_at_once

F = TypeVar("F", bound=Callable[..., Any])
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
LIMIT = 1 << 30
MANY = 100_000  # objects
FRAMES = 1 << 16  # numbers of 8 bytes
_before: list[tuple[int, int, int]] = []  # thresholds to go back to, one for each that is inside


def keep_freed_memory() -> None:
    """Re-use the pages of freed tensors instead of asking the kernel for new ones each time.

    Linux with glibc only; elsewhere it does nothing.
    Seen on two CPU cores while the embedded model was fitted: 3 % instead of 33 % of the time was
    spent in the kernel.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LIMIT)
        mallopt(M_TRIM_THRESHOLD, LIMIT)


def with_room_for_frames(function: F) -> F:
    """The frames of all that a function calls lie in one piece of memory.

    Python asks the kernel for 16 kB more where the last piece is full, and gives them back when the
    first frame in there ends. A loop just there does so in each turn; imports did it 20,000 times,
    which took 0.2 of 3 seconds. A piece is made as large as the frame that needs it, rounded up to
    a power of two: so this function says that it needs a little more than half of a megabyte.
    """
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=max(FRAMES, code.co_stacksize))
    return function


@contextmanager
def importing() -> Iterator[None]:
    """Inside, modules are imported. They stay, so Python does not look for garbage in them, neither
    then nor later: that took a tenth of the time of imports. Ctrl-C ends a command at once there.
    """
    known, was_on = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        with ends_at_once():
            yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Inside, Python looks for garbage only after many new objects.

    Each look walks what is alive: with 10,000 live episodes that took half of the time.
    """
    _before.append(gc.get_threshold() if not _before else _before[0])
    young, *older = _before[0]
    gc.set_threshold(young and max(young, MANY), *older)  # 0: never, and so it stays
    try:
        yield
    finally:
        first = _before.pop()
        if not _before:
            gc.set_threshold(*first)
