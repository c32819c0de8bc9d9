"""Lays out a run's folder: what is written where, and how a stopped run is found again."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import yaml

from rolecall.config.load import load, load_stages
from rolecall.config.references import written_keys
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, Record
from rolecall.storage.config_changes import (
    MAY_CHANGE,
    Changes,
    changes_between,
    matches_any,
)
from rolecall.storage.numbered import iterate_numbered, name_numbered
from rolecall.storage.whole_files import end_last_line, read_whole_lines, write_atomically

notices = logging.getLogger("rolecall.notices")
LOCK = ".lock"
BEGUN_FOLDERS = (
    "journal",
    "episodes",
    "updates",
    "checkpoints",
)  # which a start makes before its config
BEGUN_FILES = (LOCK, "config.yaml.tmp", "stages.yaml.tmp")
FORK = "fork.json"  # in the folder of a run that began from a checkpoint of another one
STAGES = "stages.yaml"  # in the folder of a run with stages, which holds a run folder for each


class RunFolder:
    """`runs/NAME`: config.yaml, chapters.jsonl, metrics.jsonl, summary.json, journal/, episodes/,
    updates/, evaluated/, checkpoints/.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.chapters = path / "chapters.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.journal = path / "journal"
        self.episodes = path / "episodes"
        self.updates = path / "updates"
        self.evaluated = path / "evaluated"  # what `rolecall eval` found, beside the training's own
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.txt"
        self._lock: TextIO | None = None
        self._read: tuple[tuple[int, int, int], list[JsonObject]] | None = None
        self._told: set[str] = set()  # damaged lines of the metrics

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Return the folder of a run; of one with stages, of its last stage that trains.

        Raises ConfigError if there is none.
        """
        folder = cls(path)
        if not path.is_dir():
            raise ConfigError(f"there is no run folder {path}")
        if (path / STAGES).is_file():
            return cls(_find_last_stage(path))
        if not folder.config.is_file():
            raise ConfigError(f"{path} is not a run folder: it has no config.yaml")
        return folder

    @contextmanager
    def hold_started(self, config: Config, *, allow_changes: bool = False) -> Iterator[None]:
        """Start the run, and give its lock back at the end."""
        self.start(config, allow_changes=allow_changes)
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder and keep other processes from working in it."""
        self._make(self.path)
        self._lock = self._locked()
        try:
            yield
        finally:
            self.release()

    def start(self, config: Config, *, allow_changes: bool = False) -> None:
        """Lock the folder; then make it, or check that it belongs to this run.

        Keys of MAY_CHANGE, and with `allow_changes` all others, may differ from those of an
        earlier start: `config.yaml` then has the new values, and `chapters.jsonl` says which keys
        changed after which step. Raises ConfigError naming the keys that differ otherwise, and
        where another process trains in the folder.
        """
        if not self.config.exists() and self.path.exists() and holds_other_things(self.path):
            raise ConfigError(f"{self.path} is not empty and not a run folder")
        self._make(self.path, *(self.path / name for name in BEGUN_FOLDERS))
        self._lock = self._locked()
        try:
            if changes := self.check(config, allow_changes=allow_changes):
                self._begin_chapter(config, changes)
            elif not self.config.exists():
                write_atomically(self.config, _yaml(config))
        except BaseException:
            self.release()
            raise

    def _make(self, *folders: Path) -> None:
        self.check_place()
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output: {self.path} cannot be made: {error.strerror}") from error

    def check_place(self) -> None:
        """Check that the folder can be made and written to; raises ConfigError otherwise."""
        try:
            there = next(path for path in (self.path, *self.path.parents) if path.exists())
        except OSError as error:  # such as a name that is too long
            raise ConfigError(f"output: {self.path} cannot be made: {error.strerror}") from error
        if not there.is_dir():
            raise ConfigError(
                f"output: {there} is a file, so no run folder can be {self.path}; write another "
                "folder"
            )
        if not os.access(there, os.W_OK | os.X_OK):
            raise ConfigError(
                f"output: {self.path} cannot be written (no permission in {there}); write another "
                "folder"
            )

    def is_blank(self) -> bool:
        """Return whether a start that was killed made this folder, and wrote nothing of a run."""
        if self.config.exists() or not self.path.is_dir() or holds_other_things(self.path):
            return False
        try:
            self._locked().close()
        except ConfigError:  # another process is making it just now
            return False
        return True

    def spent(self, policies: str) -> Path:
        """Return the file that says what a paid server's answers cost so far."""
        return self.path / f"spent-{policies}.json"

    def read_fork(self) -> JsonObject | None:
        """Return the run and the step that this run is a fork of; None where it is none."""
        file = self.path / FORK
        record: JsonObject | None = json.loads(file.read_text()) if file.is_file() else None
        return record

    def release(self) -> None:
        """Let another process train here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _locked(self) -> TextIO:
        """Return the lock file: held until it is closed or the process ends, in whatever way."""
        file = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise ConfigError(
                f"{self.path}: another process ({file.read().strip() or 'unknown'}) trains here; "
                "wait for it, stop it, or choose another --output"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        return file

    def check(self, config: Config, *, allow_changes: bool = False) -> Changes:
        """Return the changes with which the run would go on; none for a new one.

        Raises ConfigError for keys that may not change, and for fewer steps than are done.
        """
        changes = self.changes(config) if self.config.exists() else {}
        refused = [key for key in changes if not matches_any(key, MAY_CHANGE)]
        if refused and not allow_changes:
            raise ConfigError(
                f"{self.path} belongs to a run with another config; these keys differ: "
                f"{', '.join(refused)}. Choose another --output, or the same values; "
                "--allow-changes continues the run with the new ones"
            )
        if config.trainer.steps < (done := self.num_steps()):
            raise ConfigError(
                f"trainer.steps: {config.trainer.steps} is less than the {done} steps that "
                f"{self.path} has done"
            )
        return changes

    def _begin_chapter(self, config: Config, changes: Changes) -> None:
        line = json.dumps({"after_step": self.num_steps(), "changes": changes}) + "\n"
        # A start that was killed before the config was written has said so already.
        if not (self.chapters.exists() and self.chapters.read_text().endswith(line)):
            end_last_line(self.chapters)
            with self.chapters.open("a") as file:
                file.write(line)
        self.summary.unlink(missing_ok=True)  # it is that of the run before
        write_atomically(self.config, _yaml(config))
        notices.warning("%s continues with changed keys: %s", self.path, ", ".join(changes))

    def changes(self, config: Config) -> Changes:
        """Return keys whose values differ from those that the run has: {"trainer.steps": [3, 6]}.

        Raises ConfigError where its config.yaml cannot be read.
        """
        return changes_between(load(self.config), config)

    def append_metrics(self, record: Record) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[Record]:
        """Return all whole records, without a line that a crash cut short or that is damaged.

        The file is read again only when it has changed, and a damaged line is told once.
        """
        if not self.metrics.exists():
            return []
        status = self.metrics.stat()
        state = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._read is None or self._read[0] != state:
            self._read = (state, self._records())
        return [dict(record) for record in self._read[1]]

    def _records(self) -> list[Record]:
        records = []
        for number, line in enumerate(read_whole_lines(self.metrics).splitlines(), 1):
            try:
                record = json.loads(line)
                int(record["step"]), str(record["kind"])
            except (ValueError, KeyError, TypeError):
                if line not in self._told:
                    notices.warning("%s:%d is damaged and left out", self.metrics, number)
                self._told.add(line)
            else:
                records.append(record)
        return records

    def num_steps(self) -> int:
        """Return the newest recorded step, 0 before the first."""
        steps = [r["step"] for r in self.read_metrics() if r["kind"] == "step"]
        return max(steps, default=0)

    def forget_after(self, step: int) -> None:
        """Drop metrics, episodes and updates of steps above `step`: they will be done again."""
        kept = [r for r in self.read_metrics() if r["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))
        for folder in (self.episodes, self.updates):
            for number, file in iterate_numbered(folder, "parquet"):
                if number > step:
                    file.unlink()

    def episode_file(self, step: int) -> Path:
        return self.episodes / name_numbered(step, "parquet")

    def update_file(self, step: int) -> Path:
        return self.updates / name_numbered(step, "parquet")

    def journal_file(self, step: int) -> Path:
        return self.journal / name_numbered(step, "jsonl")


def _find_last_stage(path: Path) -> Path:
    """Return the folder of the last stage that has begun, of those that train if any of them has.

    Raises ConfigError if none has begun.
    """
    begun = [
        stage
        for stage in load_stages(path / STAGES)
        if (path / stage.name / "config.yaml").is_file()
    ]
    if not begun:
        raise ConfigError(f"{path} is a run with stages of which none has begun")
    trained = [stage for stage in begun if stage.kind == "train"]
    return path / (trained or begun)[-1].name


def holds_other_things(folder: Path) -> bool:
    """Return whether a folder holds anything but what a start leaves that is killed while making
    it.
    """

    def is_ours(entry: Path) -> bool:
        if entry.name in BEGUN_FOLDERS:
            return entry.is_dir() and not any(entry.iterdir())
        return entry.name in BEGUN_FILES

    return not all(map(is_ours, folder.iterdir()))


def _yaml(config: Config) -> str:
    return yaml.safe_dump(written_keys(config), sort_keys=False)
