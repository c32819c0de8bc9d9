"""Writes and reads text files that a crash must not leave half-written."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file at once: readers see the old text or the new one, never half of it."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def read_whole_lines(path: Path) -> str:
    """Return the content of a file up to its last line end: a crash may cut the last line short."""
    text = path.read_text(errors="replace")
    return text[: text.rfind("\n") + 1]


def end_last_line(path: Path) -> None:
    """End a file's last line, so that added lines are not joined to it.

    A process that was killed may have cut it short.
    """
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
