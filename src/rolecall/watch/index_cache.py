"""Keeps the index of a run for the next server, in the user's cache and outside of the run.

The cache may be removed at any time: what it does not say is read from the run's files again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.own_files import open_own

VERSION = 1  # of what the columns mean
MOST_FILES = 64  # that are kept, the newest ones
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """The columns of all steps, joined with the newest step first."""

    steps: list[int]
    stamps: list[tuple[int, int, int]]
    lengths: list[int]  # rows of each step
    missing: list[str]  # why a step has no rows
    names: dict[str, list[str]]
    values: Arrays


def choose_file(episodes: Path) -> Path | None:
    """Return the file that keeps the index of a run's episodes; None where there is no home."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(episodes))).hexdigest()[:32]
    try:
        return cache_folder() / "watch" / f"{name}.npz"
    except OSError:
        return None


def save_index(file: Path, kept: KeptIndex) -> None:
    """Write an index aside and then in the place of the one before; drop the oldest of others.

    Does nothing where the cache cannot be written.
    """
    head = {
        "version": VERSION, "steps": kept.steps, "stamps": kept.stamps, "lengths": kept.lengths,
        "missing": kept.missing, "names": kept.names,
    }  # fmt: skip
    parts: dict[str, Any] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, aside = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        try:
            with os.fdopen(number, "wb") as opened:
                np.savez(opened, **(parts | kept.values))
            os.replace(aside, file)
        except BaseException:
            os.unlink(aside)
            raise
        _drop_oldest(file.parent)
    except OSError:
        return


def load_index(file: Path, columns: Mapping[str, Any]) -> KeptIndex | None:
    """Return a kept index; None where there is none that has exactly these columns and types."""
    try:
        number = open_own(file, os.O_RDONLY)
        with os.fdopen(number, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            head = json.loads(bytes(arrays["head"]))
            values = {name: arrays[name] for name in columns}
        kept = KeptIndex(
            steps=[int(step) for step in head["steps"]],
            stamps=[(int(a), int(b), int(c)) for a, b, c in head["stamps"]],
            lengths=[int(length) for length in head["lengths"]],
            missing=[str(why) for why in head["missing"]],
            names={str(name): [str(t) for t in texts] for name, texts in head["names"].items()},
            values=values,
        )
        is_current = head["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        return None
    return kept if is_current and _fits(kept, columns) else None


def _fits(kept: KeptIndex, columns: Mapping[str, Any]) -> bool:
    """Return whether all parts of an index have the same length, and numbers of names are known."""
    rows, steps = sum(kept.lengths), len(kept.steps)
    same = all(len(each) == steps for each in (kept.stamps, kept.lengths, kept.missing))
    falling = all(one > other for one, other in zip(kept.steps, kept.steps[1:], strict=False))
    arrays = all(
        values.shape == (rows,) and values.dtype == np.dtype(columns[name])
        for name, values in kept.values.items()
    )
    if not (same and falling and arrays and min(kept.lengths, default=0) >= 0):
        return False
    return all(
        texts[:1] == [""] and (not rows or int(kept.values[name].max()) < len(texts))
        for name, texts in kept.names.items()
        if name in kept.values
    )


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    for file in files[:-MOST_FILES]:
        file.unlink(missing_ok=True)
