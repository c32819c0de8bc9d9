"""Saves and loads policies, critics and their optimizers, safe from a crash at any moment.

A checkpoint is written aside, flushed to disk, renamed; the pointer file `latest` moves last. So
whatever happens while saving, `latest` names a whole checkpoint. A manifest holds the checksum of
every file, so that a checkpoint which was damaged later is noticed before it is trained on.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rolecall.core.errors import ConfigError, RunEndingError, first_line
from rolecall.core.json_types import JsonObject, State
from rolecall.runtime.checksums import sha256
from rolecall.storage.folder_locks import reading, removing
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically

notices = logging.getLogger("rolecall.notices")

LATEST, BEST = "latest", "best"  # pointer files
MANIFEST = "manifest.json"
STATE = "state.json"
CRITIC = "critic."  # what folders of critics begin with
ASIDE = ".tmp-"  # what names of unfinished folders begin with
TRIES = 20  # to find a checkpoint before it is removed
STEP = re.compile(r"step-(\d+)", re.ASCII)


class Saved(Protocol):
    """An object whose state a checkpoint holds in a folder."""

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or none can be read."""


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Saved],
    *,
    states: list[State],
    keep: int,
    pinned: frozenset[int] = frozenset(),
) -> Path:
    """Write `step-N`, point `latest` at it, drop older ones but the best, the `keep` newest and
    those of `pinned` steps.

    It gets a folder for each part (policies, critics), and the small states of what has one.

    Raises CheckpointError (a full disk, say) with the previous checkpoint untouched.
    """
    final = folder / f"step-{step}"
    aside = folder / f"{ASIDE}step-{step}"
    _clear_aside(folder)
    try:
        for name, item in parts.items():
            (aside / name).mkdir(parents=True)
            item.save(aside / name)
        kinds = {name: type(item).__qualname__ for name, item in parts.items()}
        state = {"step": step, "parts": list(parts), "kinds": kinds, "states": states}
        (aside / STATE).write_text(json.dumps(state))
        (aside / MANIFEST).write_text(json.dumps({"sha256": _checksums(aside)}, indent=1))
        _flush(aside)
    except RunEndingError:  # a learner is gone
        shutil.rmtree(aside, ignore_errors=True)
        raise
    except Exception as error:  # torch and safetensors have their own types for a full disk
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint {final} cannot be written: {error}; the previous one is untouched"
        ) from error
    if final.is_symlink():
        final.unlink()
    elif final.exists():  # left by a crash between renaming and pointing
        shutil.rmtree(final)
    os.replace(aside, final)
    _flush_folder(folder)
    point(folder, LATEST, step)
    _drop_old(folder, keep=keep, pinned=pinned)
    return final


def point(folder: Path, pointer: str, step: int) -> None:
    write_atomically(folder / pointer, f"step-{step}\n")


def follow_pointer(folder: Path, pointer: str) -> Path | None:
    """Return the checkpoint that a pointer file names; None if it names none that exists."""
    try:
        name = (folder / pointer).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    checkpoint = folder / name
    return checkpoint if STEP.fullmatch(name) and checkpoint.is_dir() else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, the newest first; other files of the folder do not count."""
    folders = [
        path for path in folder.glob("step-*") if STEP.fullmatch(path.name) and path.is_dir()
    ]
    return sorted(folders, key=checkpoint_step, reverse=True)


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def identity(checkpoint: Path) -> str:
    """Equal for equal weights alone; "" where it is not known."""
    try:
        return sha256(checkpoint / MANIFEST)
    except OSError:
        return ""


def damage(checkpoint: Path) -> str:
    """Return the first thing that is wrong with a checkpoint; "" if all is as it was written."""
    try:
        written: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text())["sha256"]
        for name, checksum in written.items():
            if not (checkpoint / name).is_file():
                return f"{name} is missing"
            if sha256(checkpoint / name) != checksum:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    return ""


@contextmanager
def held(folder: RunFolder, name: str) -> Iterator[Path]:
    """Hold a checkpoint, so that a training run beside this process does not remove it.

    Raises ConfigError if the run has no such checkpoint, CheckpointError if it is damaged.
    """
    for _ in range(TRIES):
        checkpoint_folder = _named(folder.checkpoints, name)
        if checkpoint_folder is None:
            continue  # what `latest` named may be removed since, and it names a newer one by now
        with reading(checkpoint_folder) as is_there:
            if is_there:
                if wrong := damage(checkpoint_folder):
                    raise CheckpointError(f"{checkpoint_folder}: {wrong}")
                yield checkpoint_folder
                return
    there = ", ".join(sorted(path.name for path in list_checkpoints(folder.checkpoints)))
    raise ConfigError(f"{folder.path} has no checkpoint {name!r} (it has: {there or 'none'})")


def _named(folder: Path, name: str) -> Path | None:
    if name in (LATEST, BEST):
        return follow_pointer(folder, name)
    return folder / name if STEP.fullmatch(name) and (folder / name).is_dir() else None


def find_newest(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the checkpoint to continue from, and why others, or the pointer, were passed over.

    It is the one that `latest` names, and where that is damaged or names none, the newest one
    that is as it was written.
    """
    named, there = follow_pointer(folder, LATEST), list_checkpoints(folder)
    passed = {}
    if named is None and (there or (folder / LATEST).exists()):
        passed[LATEST] = "it names no checkpoint that is there"
    for candidate in [named, *there] if named else there:
        if candidate.name in passed:
            continue
        wrong = damage(candidate)
        if not wrong:
            return candidate, passed
        passed[candidate.name] = wrong
    return None, passed


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, so that no whole one is dropped in its favour."""
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
    if aside.is_symlink():
        aside.unlink()
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(checkpoint, aside)
    return aside


def load(checkpoint: Path, parts: Mapping[str, Saved]) -> list[State]:
    """Restore weights, moments, critics. Returns the states that were saved.

    Raises CheckpointError where the checkpoint does not fit these parts: it is of another team.
    """
    state: JsonObject = json.loads((checkpoint / STATE).read_text())
    if missing := sorted(set(parts) - set(state["parts"])):
        raise CheckpointError(
            f"{checkpoint} has no {missing[0]!r} (it has: {', '.join(state['parts'])}), so the "
            "run cannot continue from it with this config"
        )
    for name, item in parts.items():
        try:
            item.load(checkpoint / name)
        except RunEndingError:  # a learner is gone
            raise
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{checkpoint / name} does not fit this config: {first_line(error)}"
            ) from error
    states: list[State] = state["states"]
    return states


def critics_in(checkpoint: Path) -> dict[str, str]:
    """Return the folders of its critics, each with the class of what wrote it."""
    file = checkpoint / STATE
    kinds = json.loads(file.read_text()).get("kinds", {}) if file.is_file() else {}
    return {name: kind for name, kind in kinds.items() if name.startswith(CRITIC)}


def _drop_old(folder: Path, *, keep: int, pinned: frozenset[int]) -> None:
    kept = {follow_pointer(folder, LATEST), follow_pointer(folder, BEST)}
    free = [path for path in list_checkpoints(folder) if checkpoint_step(path) not in pinned]
    for path in free[keep:]:
        if path not in kept:
            try:
                _drop(path)
            except OSError as error:  # the new one is whole, and the run goes on
                notices.warning("the old checkpoint %s cannot be removed: %s", path, error)


def _drop(checkpoint: Path) -> None:
    """Remove a checkpoint, of a link only the link; one that is being read stays for now."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return
    with removing(checkpoint) as is_free:
        if is_free:
            aside = checkpoint.with_name(f"{ASIDE}old-{checkpoint.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(checkpoint, aside)  # so that whoever is killed now leaves no half of one
            shutil.rmtree(aside)


def _clear_aside(folder: Path) -> None:
    """Remove what saves that were killed have left."""
    for unfinished in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def _checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file, by its path within the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


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
