"""Keeps what an unfinished evaluation has played, so that one that was killed goes on."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import TextIO

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Task
from rolecall.storage.config_changes import resolve_config
from rolecall.storage.journal import Journal
from rolecall.storage.whole_files import write_atomically

PREFIX = "unfinished-"
# What may differ between the start of an evaluation and its end.
FREE = {
    "": ("output", "trackers", "prices", "algorithm", "critics", "metrics"),
    "trainer": ("steps", "save_every", "keep", "idle_steps"),
    "evaluation": ("every", "validation", "k"),
}


class EvaluationJournal:
    """A folder with a journal for each round of tasks, and what has been counted beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: TextIO | None = None

    def __enter__(self) -> EvaluationJournal:
        """Lock the journal; raises ConfigError if another process uses it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(f"another process is at this evaluation ({self.folder})") from None
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if not any(self.folder.glob("round-*")):
            self.remove()

    def round(self, number: int) -> Journal:
        """Return the journal of some of the tasks."""
        return Journal(self.folder / f"round-{number:06d}.jsonl")

    @property
    def read_counts(self) -> JsonObject:
        """{"seconds": 12.5, "failures": {..}}: what `count` has noted; {} at first."""
        file = self.folder / "counted.json"
        counted: JsonObject = json.loads(file.read_text()) if file.exists() else {}
        return counted

    def count(self, seconds: float, failures: dict[str, int]) -> None:
        """Note how long it has taken so far, and what has failed."""
        record = {"seconds": seconds, "failures": failures}
        write_atomically(self.folder / "counted.json", json.dumps(record))

    def remove(self) -> None:
        """Remove the journals of an evaluation that has come to its end."""
        shutil.rmtree(self.folder, ignore_errors=True)


def evaluation_journal(
    folder: Path, config: Config, tasks: Iterable[Task], *, of: str
) -> EvaluationJournal:
    """Return the journal in `folder` of these tasks and keys.

    `of` names what is evaluated, and the weights. Other keys, tasks or weights have another
    journal.
    """
    name = blake2b(digest_size=6)
    name.update(json.dumps([of, _that_counts(config)], sort_keys=True).encode())
    for task in tasks:
        name.update(repr((task.id, task.prompt, task.answer)).encode())
    return EvaluationJournal(folder / f"{PREFIX}{of.partition(' ')[0]}-{name.hexdigest()}")


def forget_evaluations(folder: Path, *, but: int) -> None:
    """Remove those of a run's weights after other steps than this one: nobody goes on with them."""
    for evaluation in folder.glob(f"{PREFIX}*"):
        step = evaluation.name.split("-")[2:3]
        if step != [f"{but:06d}"]:
            shutil.rmtree(evaluation, ignore_errors=True)


def _that_counts(config: Config) -> JsonObject:
    """Return the keys that what is said or counted depends on."""
    values = resolve_config(config)
    for section, names in FREE.items():
        inside = values[section] if section else values
        for name in names:
            inside.pop(name, None)
    return values
