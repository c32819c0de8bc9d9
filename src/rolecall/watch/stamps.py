"""Tells whether files have changed since they were read."""

from __future__ import annotations

from pathlib import Path

from rolecall.storage.numbered import iterate_numbered

Stamp = tuple[int, int, int]  # inode, time and size of a file


def stamp(path: Path) -> Stamp | None:
    """Return what changes when a file does; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def stamp_steps(folder: Path) -> dict[int, Stamp]:
    """Return the stamps of the files of steps, the newest step first."""
    stamps = {step: stamp(path) for step, path in iterate_numbered(folder, "parquet")}
    return {step: state for step, state in reversed(stamps.items()) if state is not None}
