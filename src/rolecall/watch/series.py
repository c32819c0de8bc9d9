"""Follows a run's metrics.jsonl: each line is read once, and a rewound file is noticed."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO

from rolecall.core.json_types import Record
from rolecall.monitor.comparison import TEST, metric_names
from rolecall.watch.clean_json import finite, load_clean
from rolecall.watch.models import Evaluation, Number

NAN = float("nan")
CHUNK = 1 << 20  # bytes that are read at once
TAIL = 64  # bytes before the end of what was read, by which a rewritten file is noticed
NOT_NUMBERS = ("kind", "step", "when", "split")
_generations = count(int(time.time()))


@dataclass(slots=True)
class Metrics:
    """All that the lines of a file say, column by column."""

    steps: list[int] = field(default_factory=list)
    columns: dict[str, array[float]] = field(default_factory=dict)  # NaN: not in that step
    evaluations: list[Evaluation] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)  # row -> the first failure of its step
    damaged: int = 0  # lines
    cursor: str = ""  # of what comes behind them

    def copy(self, cursor: str) -> Metrics:
        """Return what does not grow with the file any more."""
        return Metrics(
            steps=list(self.steps),
            columns={name: column[:] for name, column in self.columns.items()},
            evaluations=list(self.evaluations),
            errors=dict(self.errors),
            damaged=self.damaged,
            cursor=cursor,
        )

    def add(self, record: Record) -> None:
        if record["kind"] == "step":
            self._add_step(record)
        elif record["kind"] == "evaluation":
            self.evaluations.append(read_evaluation(record))

    def _add_step(self, record: Record) -> None:
        rows = len(self.steps)
        self.steps.append(int(record["step"]))
        if isinstance(error := record.get("error"), str):
            self.errors[rows] = error
        for name, value in record.items():
            number = finite(value)
            if number is None or name in NOT_NUMBERS:
                continue
            if name not in self.columns:
                self.columns[name] = array("d", [NAN]) * rows
            self.columns[name].append(number)
        for column in self.columns.values():
            if len(column) == rows:
                column.append(NAN)

    def values(self, name: str, first: int = 0) -> list[Number]:
        """Return a series from a row on; None where a step has no such number."""
        column = self.columns.get(name)
        if column is None:
            return [None] * (len(self.steps) - first)
        return [None if value != value else value for value in column[first:]]

    def at_step(self, step: int) -> dict[str, Number]:
        """Return all numbers of a step; {} where none are recorded."""
        rows = [row for row, number in enumerate(self.steps) if number == step]
        if not rows:
            return {}
        row = rows[-1]
        return {
            name: column[row] for name, column in self.columns.items() if column[row] == column[row]
        }

    def records(self, rows: Iterable[int]) -> list[Record]:
        """Return rows as the records that they were read from, as far as these are kept."""
        return [
            {"kind": "step", "step": self.steps[row]}
            | {name: c[row] for name, c in self.columns.items() if c[row] == c[row]}
            | ({"error": self.errors[row]} if row in self.errors else {})
            for row in rows
        ]


class SeriesReader:
    """Reads what was added to a file since it was last looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = next(_generations)
        self.offset = 0  # of the first byte that is not read
        self.metrics = Metrics(cursor=self.cursor)  # as they were last read
        self._read_metrics = Metrics()  # that grow, under the lock
        self._inode = 0
        self._tail = b""  # the bytes before the offset
        self._rows: list[tuple[int, int, int]] = [(0, 0, 0)]  # offset, steps and evaluations then
        self._lock = threading.Lock()

    @property
    def cursor(self) -> str:
        return f"{self.generation}:{self.offset}"

    def refresh(self) -> Metrics:
        """Read the whole lines that were added; a half-written one waits for its end.

        Other threads read on while an answer is made of what is returned, so it stays as it is.
        """
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._check_same(file)
                    self._read(file)
            except OSError:
                if self.offset:
                    self._begin_anew(0)
            if self.metrics.cursor != self.cursor:
                self.metrics = self._read_metrics.copy(self.cursor)
            return self.metrics

    def rows_before(self, cursor: str) -> tuple[int, int] | None:
        """Return how many steps and evaluations were read up to a cursor.

        None for a cursor of another generation, and for text that is no cursor.
        """
        generation, _, text = cursor.partition(":")
        if generation != str(self.generation) or not text.isdecimal():
            return None
        offset = int(text)
        if offset > self.offset:
            return None
        steps, evaluations = 0, 0
        for position, num_steps, num_evaluations in reversed(self._rows):
            if position <= offset:
                steps, evaluations = num_steps, num_evaluations
                break
        return steps, evaluations

    def _check_same(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if self.offset and self._inode == status.st_ino and status.st_size >= self.offset:
            file.seek(self.offset - len(self._tail))
            if file.read(len(self._tail)) == self._tail:
                return
        if self.offset:
            self._begin_anew(status.st_ino)
        self._inode = status.st_ino

    def _begin_anew(self, inode: int) -> None:
        self._read_metrics, self.generation = Metrics(), next(_generations)
        self.offset, self._tail, self._inode, self._rows = 0, b"", inode, [(0, 0, 0)]

    def _read(self, file: BinaryIO) -> None:
        file.seek(self.offset)
        rest = b""
        while chunk := file.read(CHUNK):
            whole, separator, rest = (rest + chunk).rpartition(b"\n")
            if not separator:
                continue
            for line in whole.split(b"\n"):
                self._add_line(line)
            self.offset += len(whole) + 1
            self._tail = (whole + separator)[-TAIL:]
            there = len(self._read_metrics.steps), len(self._read_metrics.evaluations)
            self._rows.append((self.offset, *there))

    def _add_line(self, line: bytes) -> None:
        if (record := read_line(line)) is not None:
            self._read_metrics.add(record)
        elif line.strip():
            self._read_metrics.damaged += 1


def read_line(line: bytes) -> Record | None:
    """Return the record of a line of metrics; None for a line that is damaged."""
    try:
        record = load_clean(line.decode(errors="replace"))
        int(record["step"]), str(record["kind"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return record if isinstance(record["kind"], str) else None


def read_evaluation(record: Record) -> Evaluation:
    """Return an evaluation with its measures flat, the headline being the first with a margin."""
    names = metric_names(record)
    headline = names[0] if names else ""
    return Evaluation(
        step=int(record["step"]),
        when=str(record.get("when", "")),
        split=str(record.get("split", TEST)),
        headline=headline,
        value=finite(record.get(headline)),
        margin=finite(record.get(f"{headline}_margin")),
        scores=dict(_flatten(record)),
    )


def _flatten(record: Record, prefix: str = "") -> list[tuple[str, Number]]:
    flat: list[tuple[str, Number]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            flat += _flatten(value, f"{prefix}{name}/")
        elif prefix or name not in NOT_NUMBERS:
            number = finite(value)
            flat += [(f"{prefix}{name}", number)] if number is not None else []
    return flat
