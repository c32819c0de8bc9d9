"""Policies, critics and their optimizers in, a checkpoint that survives a crash at any moment out.

A checkpoint is written aside, flushed to disk, renamed; the pointer file `latest` moves last. So
whatever happens while saving, `latest` names a whole checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rolecall.runs import write_aside

LATEST, BEST = "latest", "best"  # pointer files


class Saved(Protocol):
    """What a checkpoint holds a folder of."""

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the previous one is untouched."""


def save(
    folder: Path, step: int, parts: Mapping[str, Saved], *, states: list[Any], keep: int
) -> Path:
    """Write `step-N`, point `latest` at it, drop older ones but the best and the `keep` newest.

    It gets a folder for each part (policies, critics), and the small states of what has one.

    Raises CheckpointError (a full disk, say) with the previous checkpoint untouched.
    """
    final = folder / f"step-{step}"
    aside = folder / f".tmp-step-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        for name, part in parts.items():
            (aside / name).mkdir(parents=True)
            part.save(aside / name)
        state = {"step": step, "parts": list(parts), "states": states}
        (aside / "state.json").write_text(json.dumps(state))
        _flush(aside)
    except Exception as error:  # torch and safetensors have their own types for a full disk
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint {final} cannot be written: {error}; the previous one is untouched"
        ) from error
    if final.exists():  # left by a crash between renaming and pointing
        shutil.rmtree(final)
    os.replace(aside, final)
    _flush_folder(folder)
    point(folder, LATEST, step)
    _drop_old(folder, keep=keep)
    return final


def point(folder: Path, pointer: str, step: int) -> None:
    write_aside(folder / pointer, f"step-{step}\n")


def pointed(folder: Path, pointer: str) -> Path | None:
    """The checkpoint that a pointer file names, if there is one."""
    path = folder / pointer
    if not path.is_file():
        return None
    found = folder / path.read_text().strip()
    return found if (found / "state.json").is_file() else None


def step_of(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / "state.json").read_text())["step"])


def load(checkpoint: Path, parts: Mapping[str, Saved]) -> list[Any]:
    """Restore weights, moments, critics. Returns the states that were saved."""
    for name, part in parts.items():
        part.load(checkpoint / name)
    states: list[Any] = json.loads((checkpoint / "state.json").read_text())["states"]
    return states


def _drop_old(folder: Path, *, keep: int) -> None:
    kept = {pointed(folder, LATEST), pointed(folder, BEST)}
    steps = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    for path in steps[:-keep]:
        if path not in kept:
            shutil.rmtree(path)


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            _flush_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
