"""Makes folders in shared memory, through which processes on one machine hand over weights.

Where shared memory lacks the room (a container often has 64 MB of it), they lie on the disk. What
killed processes have left is removed when a next one needs room.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from rolecall.runtime.held_folders import PREFIX, HeldFolder, hold, sweep
from rolecall.runtime.own_files import ForeignFileError, is_own_folder, open_own

SHARED = f"{PREFIX}of-"  # and a name that several processes know
MEMORY = Path("/dev/shm")


def scratch_folder(*, room: int) -> HeldFolder:
    """Make a folder that ends with its object; `room`: bytes that it must hold. Raises OSError."""
    return HeldFolder(_place_with(room))


def open_scratch_file(file: Path, *, size: int) -> BinaryIO:
    """Open a file of so many bytes that another process of ours has put into a scratch folder.

    Raises OSError where the path leads anywhere else, or the file has another size.
    """
    folder = file.parent
    if folder.parent not in _places() or not folder.name.startswith(PREFIX):
        raise ForeignFileError(f"{file} is in no scratch folder")
    if not is_own_folder(folder):
        raise ForeignFileError(f"{folder} is no folder of this user")
    opened = os.fdopen(open_own(file, os.O_RDWR), "r+b")
    if (actual := os.fstat(opened.fileno()).st_size) != size:
        opened.close()
        raise OSError(f"{file} has {actual} bytes and not {size}")
    return opened


def shared_folder(name: str, part: str, *, room: int) -> Path:
    """Return an empty folder `part` of what the processes that know `name` share, one at a time.

    It stays while one of these that has called `hold` is there. Raises OSError without the room.
    """
    remove_shared(name, part)
    folder = _place_with(room) / name
    hold(folder)
    (folder / part).mkdir(mode=0o700)
    return folder / part


def remove_shared(name: str, part: str = "") -> None:
    """Remove all of it, or a part."""
    for folder in _places():
        if is_own_folder(folder / name):
            shutil.rmtree(folder / name / part, ignore_errors=True)


def _places() -> list[Path]:
    disk = Path(tempfile.gettempdir())
    return [MEMORY, disk] if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else [disk]


def _place_with(room: int) -> Path:
    for folder in _places():
        sweep(folder)
        if (free := shutil.disk_usage(folder).free) > room:
            return folder
    raise OSError(
        f"{folder} has {free / 1e9:.1f} GB free and weights of {room / 1e9:.1f} GB are to be "
        "handed over there; free some, or point TMPDIR at another disk"
    )
