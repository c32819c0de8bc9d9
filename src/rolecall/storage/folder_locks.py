"""Locks folders of a run, so that none is removed while another process reads it.

Where a file system has no locks, everything goes on without them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(folder: Path) -> Iterator[bool]:
    """Keep a folder from being removed; yields whether it is there."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        _try_lock(number, fcntl.LOCK_SH)
        yield _is_still(folder, number)
    finally:
        os.close(number)


@contextmanager
def removing(folder: Path) -> Iterator[bool]:
    """Yield whether nobody reads a folder; nobody begins to inside the block."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _try_lock(number, fcntl.LOCK_EX)
    finally:
        os.close(number)


def _try_lock(number: int, how: int) -> bool:
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # there are no locks
        return True
    return True


def _is_still(folder: Path, number: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(number))
    except OSError:
        return False
