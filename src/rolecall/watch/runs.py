"""Finds the runs in the folders that are watched; clients name them, and never a path."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rolecall.storage.numbered import iterate_numbered, name_numbered
from rolecall.storage.run_folder import STAGES
from rolecall.watch.configs import RunConfig, read_config
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.series import SeriesReader
from rolecall.watch.stamps import stamp

MOST_DEPTH = 4  # folders below the one that is watched
LOOK_S = 2.0  # after which folders are looked through again
MARKS = ("config.yaml", "metrics.jsonl", "episodes")  # any of them makes a folder a run


class WatchedRun:
    """One run: where it lies, and what has been read of it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.series = SeriesReader(path / "metrics.jsonl")
        self._config: tuple[object, RunConfig] | None = None

    @property
    def config(self) -> RunConfig:
        """The keys of the run, read again when the file has changed."""
        state = stamp(self.path / "config.yaml")
        if self._config is None or self._config[0] != state:
            self._config = (state, read_config(self.path))
        return self._config[1]

    def episode_file(self, step: int) -> Path:
        return self.path / "episodes" / name_numbered(step, "parquet")

    def update_file(self, step: int) -> Path:
        return self.path / "updates" / name_numbered(step, "parquet")

    def list_steps(self) -> list[int]:
        """Return the steps whose episodes are on disk, rising."""
        return [step for step, _ in iterate_numbered(self.path / "episodes", "parquet")]

    def choose_step(self, step: int | None) -> int:
        """Return a step with episodes, the newest one for None; raises UnknownNameError."""
        steps = self.list_steps()
        if not steps:
            raise UnknownNameError(f"run {self.name!r} has no episodes on disk yet")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise UnknownNameError(
                f"run {self.name!r} has no episodes of step {step}; it has those of "
                f"{len(steps):,} steps from {steps[0]} to {steps[-1]}"
            )
        return step


class Runs:
    """All runs below some folders, looked for again every few seconds."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self._runs: dict[str, WatchedRun] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def list_all(self) -> list[WatchedRun]:
        """Return all runs in the order of their names."""
        with self._lock:
            if time.monotonic() - self._looked_at > LOOK_S:
                paths = name_runs(self.folders)
                self._runs = {name: self._keep(name, path) for name, path in sorted(paths.items())}
                self._looked_at = time.monotonic()
            return [*self._runs.values()]

    def find(self, name: str) -> WatchedRun:
        """Return the run of a name; raises UnknownNameError."""
        for run in self.list_all():
            if run.name == name:
                return run
        raise UnknownNameError(f"there is no run {name!r} in the folders that are watched")

    def _keep(self, name: str, path: Path) -> WatchedRun:
        run = self._runs.get(name)
        return run if run is not None and run.path == path else WatchedRun(name, path)


def name_runs(folders: list[Path]) -> dict[str, Path]:
    """Return the runs below folders by their names, which are paths relative to a folder.

    Where two folders hold runs of one name, that of the later folder has the folder's name before
    it.
    """
    named: dict[str, Path] = {}
    seen: set[str] = set()  # a run that two folders lead to is one run
    for folder in folders:
        root = folder.absolute()
        for path in _iterate_runs(root, MOST_DEPTH, set()):
            if (real := os.path.realpath(path)) in seen:
                continue
            seen.add(real)
            relative = path.relative_to(root).as_posix()
            name = root.name if relative == "." else relative
            number = 2
            unique = name if name not in named else f"{root.name}/{name}"
            while unique in named:
                unique, number = f"{name} ({number})", number + 1
            named[unique] = path
    return {name: path for name, path in named.items() if _is_text(name)}


def _iterate_runs(folder: Path, depth: int, seen: set[str]) -> Iterator[Path]:
    """Yield the run folders at most `depth` below a folder; a linked one once."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        with os.scandir(folder) as entries:
            names = {entry.name for entry in entries if entry.name in MARKS or _is_folder(entry)}
    except OSError:
        return
    if names.intersection(MARKS):
        yield folder
        return
    is_staged = (folder / STAGES).is_file()
    if depth or is_staged:
        for name in sorted(names):
            yield from _iterate_runs(folder / name, max(0, depth - 1), seen)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return False


def _is_text(name: str) -> bool:
    """Return whether a name can be sent: bytes of a folder's name need not be UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
