"""Makes folders in shared memory, through which processes on one machine hand over weights.

Where shared memory lacks the room (a container often has 64 MB of it), they lie on the disk. What
killed processes have left is removed when a next one needs room.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "rolecall-"  # and the number of the process that owns the folder
SHARED = f"{PREFIX}of-"  # and a name that several processes know
LOCK = ".held"
MEMORY = Path("/dev/shm")
_held: set[Path] = set()  # by this process


def scratch_folder(*, room: int) -> tempfile.TemporaryDirectory[str]:
    """A folder that ends with its object; `room`: bytes that it must hold. Raises OSError."""
    prefix = f"{PREFIX}{os.getpid()}-"
    return tempfile.TemporaryDirectory(prefix=prefix, dir=_place_with(room))


def shared_folder(name: str, part: str, *, room: int) -> Path:
    """An empty folder `part` of what the processes that know `name` share, one at a time.

    It stays while one of these that has called `hold` is there. Raises OSError without the room.
    """
    remove_shared(name, part)
    folder = _place_with(room) / name
    hold(folder)
    (folder / part).mkdir()
    return folder / part


def remove_shared(name: str, part: str = "") -> None:
    """All of it, or a part."""
    for place in _places():
        shutil.rmtree(place / name / part, ignore_errors=True)


def hold(folder: Path) -> None:
    """Make a shared folder that stays at least until this process has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in _held:
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(number, fcntl.LOCK_SH)  # until the process ends
        _held.add(folder)


def _places() -> list[Path]:
    disk = Path(tempfile.gettempdir())
    return [MEMORY, disk] if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else [disk]


def _place_with(room: int) -> Path:
    for place in _places():
        _sweep(place)
        if (free := shutil.disk_usage(place).free) > room:
            return place
    raise OSError(
        f"{place} has {free / 1e9:.1f} GB free and weights of {room / 1e9:.1f} GB are to be "
        "handed over there; free some, or point TMPDIR at another disk"
    )


def _sweep(place: Path) -> None:
    """Remove what processes left that have died."""
    for lock in place.glob(f"{SHARED}*/{LOCK}"):
        with suppress(OSError), lock.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody holds it
            shutil.rmtree(lock.parent, ignore_errors=True)
    for folder in place.glob(f"{PREFIX}[0-9]*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
