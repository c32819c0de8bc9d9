"""Makes folders that end with their process, and removes those that killed processes have left.

A process holds a lock in each of its folders as long as it lives. Locks hold between containers
that share a place such as /dev/shm, where numbers of processes mean nothing: those of another
container are not in /proc.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rolecall.runtime.own_files import is_own_folder, open_own

PREFIX = "rolecall-"  # of the name of every folder
LOCK = ".held"
UNLOCKED_S = 3600.0  # after which a folder without a lock belongs to nobody
_held: dict[Path, int] = {}  # by this process


class HeldFolder:
    """A new folder that is removed by `cleanup`, with its object, or after its process."""

    def __init__(self, place: Path, label: str = "", *, prefix: str = PREFIX) -> None:
        """`prefix` and `label`: of its name. Raises OSError where none can be made."""
        self.name = tempfile.mkdtemp(prefix=f"{prefix}{label}", dir=place)
        lock = _lock_shared(Path(self.name))
        self._end = weakref.finalize(self, _remove, self.name, lock)

    def cleanup(self) -> None:
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup()


def hold(folder: Path) -> None:
    """Make a folder that stays at least until this process has ended; several may hold it.

    Raises OSError where it cannot be made, or is no folder of this user.
    """
    if folder in _held and is_own_folder(folder):
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own_folder(folder):
        raise OSError(f"{folder} is no folder of this user; remove it")
    _held[folder] = _lock_shared(folder)


def sweep(place: Path, prefix: str = PREFIX) -> None:
    """Remove folders of this user that nobody holds any more."""
    for folder in place.glob(f"{glob.escape(prefix)}*"):
        if is_own_folder(folder):
            with suppress(OSError):
                _remove_unheld(folder)


def _lock_shared(folder: Path) -> int:
    """Lock a folder until the number that is returned is closed."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)  # it may have been swept
        number = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(number, fcntl.LOCK_SH)
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), (folder / LOCK).lstat()):
                return number
        os.close(number)


def _remove_unheld(folder: Path) -> None:
    try:
        number = open_own(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        # Its process was killed before it could lock it, or is just about to.
        if time.time() - folder.stat().st_mtime > UNLOCKED_S and not any(folder.iterdir()):
            folder.rmdir()
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody holds it
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(number)


def _remove(folder: str, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
