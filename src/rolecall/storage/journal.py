"""Keeps the finished episodes of a step until the step is done."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rolecall.core.types import Episode
from rolecall.storage.episode_io import from_json, to_json
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.whole_files import end_last_line, read_whole_lines, write_atomically

notices = logging.getLogger("rolecall.notices")
MOST_UNSETTLED_S = 1.0  # for which a finished episode may be in memory only


class Journal:
    """The finished episodes of one step, all on disk before the trainer sees them.

    A process that is killed loses none that it has appended; a machine that loses its power loses
    those of the last second. Processes that play episodes for the trainer have a part each.
    """

    def __init__(self, path: Path, *, unsettled_s: float = MOST_UNSETTLED_S) -> None:
        """`unsettled_s`: for how long at most an episode may be in memory only."""
        self.path, self.unsettled_s = path, unsettled_s
        self._file: TextIO | None = None
        self._settled_at = 0.0

    def part(self, name: str) -> Journal:
        """Return the journal of another process, which settles each episode: the trainer gets it
        at once.
        """
        return Journal(self.path.with_name(f"{self.path.stem}.{name}.jsonl"), unsettled_s=0.0)

    def append(self, episode: Episode) -> None:
        if self._file is None:
            end_last_line(self.path)
            self._file = self.path.open("a")
        self._file.write(to_json(episode) + "\n")
        self._file.flush()
        if time.monotonic() - self._settled_at >= self.unsettled_s:
            self.settle()

    def settle(self) -> None:
        """Wait until all that was appended is on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        self._settled_at = time.monotonic()

    def close(self) -> None:
        if self._file is not None:
            self.settle()
            self._file.close()
            self._file = None

    def drop(self, episodes: list[Episode]) -> None:
        """Forget these: they will be played again."""
        if not episodes:
            return
        self.close()
        names = {episode.id for episode in episodes}
        for path in self._files():
            kept = [episode for episode in _read(path) if episode.id not in names]
            write_atomically(path, "".join(to_json(episode) + "\n" for episode in kept))

    def read(self) -> list[Episode]:
        """Finished episodes, each attempt once: one that was lost with its process may have been
        written there before it was played again.

        A last line that a crash cut short is dropped from the file too, and so is one that is
        damaged: its episode is played again.
        """
        episodes: dict[tuple[str, int], Episode] = {}
        for path in self._files():
            for episode in _read(path):
                episodes.setdefault((episode.task.id, episode.attempt), episode)
        return list(episodes.values())

    def stream(self) -> Iterator[Episode]:
        """Yield what is whole, one episode at a time, where all together need not fit into
        memory.

        The file is left as it is; an attempt that was played twice comes twice.
        """
        for path in self._files():
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        if line.endswith(b"\n"):
                            yield from_json(line.decode())
                    except (ValueError, KeyError, TypeError):
                        notices.warning("%s:%d is damaged: it is played again", path, number)

    def remove(self) -> None:
        """Forget all."""
        self.close()
        for path in self._files():
            path.unlink()

    def _files(self) -> list[Path]:
        parts = sorted(self.path.parent.glob(f"{self.path.stem}.*.jsonl"))
        return [self.path, *parts] if self.path.exists() else parts


def _read(path: Path) -> list[Episode]:
    episodes, whole = [], []
    for number, line in enumerate(read_whole_lines(path).splitlines(keepends=True), 1):
        try:
            episodes.append(from_json(line))
            whole.append(line)
        except (ValueError, KeyError, TypeError):
            notices.warning("%s:%d is damaged: it is played again", path, number)
    text = "".join(whole)
    if path.read_bytes() != text.encode():
        write_atomically(path, text)
    return episodes


def iterate_journals(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield each journal with its step, and so the parts of other processes."""
    for step, path in iterate_numbered(folder, "jsonl"):
        yield step, path
    for path in sorted(folder.glob("step-*.*.jsonl")):
        if match := re.fullmatch(r"step-(\d+)", path.name.partition(".")[0], re.ASCII):
            yield int(match[1]), path
