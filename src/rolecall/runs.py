"""A run's folder: what is written where, and how a finished or stopped run is found again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import yaml

from rolecall.config import Config
from rolecall.config_errors import ConfigError
from rolecall.core import Episode
from rolecall.episodes import from_json, to_json

MAY_CHANGE = ("output", "trackers")  # keys that a resumed run may have otherwise


class RunFolder:
    """`runs/NAME`: config.yaml, metrics.jsonl, summary.json, journal/, episodes/, checkpoints/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.journal = path / "journal"
        self.episodes = path / "episodes"
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.txt"

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Raises ConfigError where there is no run."""
        folder = cls(path)
        if not path.is_dir():
            raise ConfigError(f"there is no run folder {path}")
        if not folder.config.is_file():
            raise ConfigError(f"{path} is not a run folder: it has no config.yaml")
        return folder

    def start(self, config: Config) -> None:
        """Make the folder, or check that it belongs to this very config.

        Raises ConfigError naming the keys that differ.
        """
        if self.config.exists():
            differing = differences(yaml.safe_load(self.config.read_text()), resolved(config))
            if differing:
                raise ConfigError(
                    f"{self.path} belongs to a run with another config; these keys differ: "
                    f"{', '.join(differing)}. Choose another --output, or the same values"
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty and not a run folder")
        for folder in (self.journal, self.episodes, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.config.exists():
            write_aside(self.config, yaml.safe_dump(resolved(config), sort_keys=False))

    def append_metrics(self, record: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole records; a line that a crash cut short is no record."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in _whole(self.metrics.read_text()).splitlines()]

    def forget_after(self, step: int) -> None:
        """Drop the metrics and episodes of steps above `step`: they will be done again."""
        kept = [r for r in self.read_metrics() if r["step"] <= step]
        write_aside(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))
        for file in self.episodes.glob("step-*.parquet"):
            if _number(file) > step:
                file.unlink()

    def episode_file(self, step: int) -> Path:
        return self.episodes / f"step-{step:06d}.parquet"


class Journal:
    """The finished episodes of one step, each on disk before the trainer sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def append(self, episode: Episode) -> None:
        if self._file is None:
            self._file = self.path.open("a")
        self._file.write(to_json(episode) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def drop(self, episodes: list[Episode]) -> None:
        """Forget these: they will be played again."""
        if not episodes:
            return
        self.close()
        names = {episode.id for episode in episodes}
        left = [episode for episode in self.read() if episode.id not in names]
        write_aside(self.path, "".join(to_json(episode) + "\n" for episode in left))

    def read(self) -> list[Episode]:
        """Finished episodes; a last line that a crash cut short is dropped from the file too."""
        if not self.path.exists():
            return []
        text = self.path.read_text()
        whole = _whole(text)
        if whole != text:
            write_aside(self.path, whole)
        return [from_json(line) for line in whole.splitlines()]


def journals(folder: RunFolder) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.journal.glob("step-*.jsonl")):
        yield _number(path), path


def journal_path(folder: RunFolder, step: int) -> Path:
    return folder.journal / f"step-{step:06d}.jsonl"


def resolved(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json")


def differences(old: dict[str, Any], new: dict[str, Any], *, prefix: str = "") -> list[str]:
    """Dotted keys whose values differ, those that may change left out."""
    found = []
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if name in MAY_CHANGE or a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, prefix=f"{name}.")
        else:
            found.append(name)
    return found


def write_aside(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never half of it."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _whole(text: str) -> str:
    """Text up to its last line end: a crash may cut the last line short."""
    return text[: text.rfind("\n") + 1]


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
