"""Lists the files of a run's steps, quickly: it is asked for with every search of a long run."""

from __future__ import annotations

import os
import re
from pathlib import Path

NAME = re.compile(r"step-(\d{6,})\.parquet", re.ASCII)
Stamp = tuple[int, int, int]  # inode, time and size of a file


def name_step(step: int) -> str:
    """Return the name of the file of a step."""
    return f"step-{step:06d}.parquet"


def list_step_numbers(folder: Path) -> list[int]:
    """Return the steps that have a file in a folder, rising."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(NAME.fullmatch, names) if match)


def stamp_steps(folder: Path) -> dict[int, Stamp]:
    """Return what changes when the file of a step does, the newest step first."""
    stamps: dict[int, Stamp] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if match := NAME.fullmatch(entry.name):
                    try:
                        status = entry.stat()
                    except OSError:  # it was removed meanwhile
                        continue
                    stamps[int(match[1])] = status.st_ino, status.st_mtime_ns, status.st_size
    except OSError:
        return {}
    return dict(sorted(stamps.items(), reverse=True))
