"""Opens files in folders that others may write to: only regular files of this user."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ForeignFileError(OSError):
    """A path leads to a link, a pipe or a file of another user where one of ours must be."""


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file of this user and return its number; never wait and never follow a link.

    Raises ForeignFileError where something else has that name, and OSError as `os.open` does.
    """
    safe = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        number = os.open(path, flags | safe, mode)
    except OSError as error:
        # ELOOP for a link, ENXIO for a pipe that nobody reads or for a socket.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ForeignFileError(f"{path} is no regular file; remove it") from error
        raise
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(number)
        raise ForeignFileError(f"{path} is no regular file of this user; remove it")
    return number


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder of this user, and no link to one."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
