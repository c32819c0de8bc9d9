"""Waits for a lock that processes of one user share, for a limited time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rolecall.runtime.own_files import open_own

POLL_S = 0.05
SAY_S = 3.0  # of waiting, after which a line says so


class LockHeldError(OSError):
    """Another process held the lock all the time."""


@contextmanager
def locked_file(
    file: Path, *, wait_s: float, say: Callable[[str], None] = lambda line: None
) -> Iterator[None]:
    """Hold the lock of a file, which is made; `say` is called where that takes long.

    Raises LockHeldError where the lock is not free within `wait_s`, and OSError where the file
    cannot be opened or is not a regular file of this user.
    """
    while True:
        number = open_own(file, os.O_RDWR | os.O_CREAT)
        try:
            _take(number, file, wait_s, say)
            if not _is_still(file, number):
                continue  # whoever held it has removed it
            yield
            return
        finally:
            os.close(number)


def _is_still(file: Path, number: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(number))
    except FileNotFoundError:
        return False


def _take(number: int, file: Path, wait_s: float, say: Callable[[str], None]) -> None:
    began, is_said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited >= wait_s:
            raise LockHeldError(f"another process has held {file} for {wait_s:g} s")
        if waited >= min(SAY_S, wait_s / 2) and not is_said:
            say(f"waiting for {file}, which another process holds, for {wait_s:g} s at most")
            is_said = True
        time.sleep(POLL_S)
