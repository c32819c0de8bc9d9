"""Makes folders in shared memory, through which processes on one machine hand over weights."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "rolecall-"
MEMORY = Path("/dev/shm")


def scratch_folder(*, room: int) -> tempfile.TemporaryDirectory[str]:
    """A folder that ends with its object; `room`: bytes that it must hold.

    Where shared memory lacks the room (a container often has 64 MB of it), it lies on the disk.
    Folders of processes that were killed are removed.
    """
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        _sweep(MEMORY)
        if shutil.disk_usage(MEMORY).free > room:
            return _folder(MEMORY)
    place = Path(tempfile.gettempdir())
    _sweep(place)
    if (free := shutil.disk_usage(place).free) <= room:
        raise OSError(
            f"{place} has {free / 1e9:.1f} GB free and weights of {room / 1e9:.1f} GB are to be "
            "handed over there; free some, or point TMPDIR at another disk"
        )
    return _folder(place)


def _folder(place: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=place)


def _sweep(place: Path) -> None:
    """Remove what processes left that have died."""
    for folder in place.glob(f"{PREFIX}[0-9]*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
