"""Lets a folder be written beside its place, so that nobody finds half of it.

What a killed process has left there is hidden, found by nobody who looks for data, and removed by
the next one that writes the same folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from rolecall.runtime.held_folders import HeldFolder, sweep

# What Python's tempfile calls folders: earlier versions wrote data sets into one inside the target.
LEFT_INSIDE = re.compile(r"tmp[a-z0-9_]{8}")


@contextmanager
def new_folder_beside(folder: Path) -> Iterator[Path]:
    """Yield a new folder on the disk of `folder`, which ends with the block or with its process."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.partial-"
    sweep(folder.parent, prefix)
    with HeldFolder(folder.parent, prefix=prefix) as held:
        aside = Path(held) / folder.name
        aside.mkdir()
        yield aside


def replace_folder(aside: Path, folder: Path) -> None:
    """Let a folder that was written beside another one take its place, or that of its files.

    Old files of the same names go first: a process that is killed meanwhile leaves fewer files,
    never some of both.
    """
    files = sorted(aside.iterdir())
    for file in files:
        _settle(file)
    if not folder.exists() or not any(folder.iterdir()):
        os.replace(aside, folder.resolve())
        return
    for file in files:
        (folder / file.name).unlink(missing_ok=True)
    for file in files:
        os.replace(file, folder / file.name)


def is_partial(path: PurePath) -> bool:
    """Return whether a path, relative to where it is looked for, lies in what is being written."""
    return any(name.startswith(".") or LEFT_INSIDE.fullmatch(name) for name in path.parts[:-1]) or (
        path.name.startswith(".")
    )


def _settle(file: Path) -> None:
    """Wait until a file is on disk, or a machine that loses its power has an empty one."""
    if file.is_file():
        number = os.open(file, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
