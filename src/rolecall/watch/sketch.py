"""Reads a few lines of a long metrics.jsonl: enough for a row in a list of many runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite
from rolecall.watch.models import Number
from rolecall.watch.series import read_evaluation, read_line

SMALL = 1 << 19  # bytes; a smaller file is read whole
TAIL = 1 << 18  # bytes at the end of a larger one
POINTS = 60  # of the line that shows the score


@dataclass(frozen=True, slots=True)
class Sketch:
    """The newest numbers of a run, and its score thinned to a line of few points."""

    step: int = 0
    score: Number = None
    scores: list[Number] = field(default_factory=list)
    held_out: Number = None


def sketch_metrics(path: Path) -> Sketch:
    """Return the sketch of a file; an empty one where there is none.

    Of a large file the end is read, and single lines at equal distances before it.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= SMALL:
                records = _parse(file.read())
                return _sum_up(records, records)
            newest = _parse(_read_from(file, size - TAIL, TAIL))
            spread = [_line_at(file, size * point // POINTS) for point in range(POINTS)]
    except OSError:
        return Sketch()
    return _sum_up([record for record in spread if record is not None], newest)


def _sum_up(spread: list[Record], newest: list[Record]) -> Sketch:
    steps = [record for record in newest if record["kind"] == "step"]
    tested = [read_evaluation(record) for record in newest if record["kind"] == "evaluation"]
    curve = [record for record in spread if record["kind"] == "step"]
    scored = [finite(record.get("score")) for record in curve]
    every = max(1, -(-len(scored) // POINTS))
    last = steps[-1] if steps else {}
    return Sketch(
        step=int(last.get("step", 0)),
        score=finite(last.get("score")),
        scores=scored[::-1][::every][::-1],
        held_out=next((one.value for one in reversed(tested) if one.value is not None), None),
    )


def _parse(content: bytes) -> list[Record]:
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    records = [read_line(line) for line in lines]
    return [record for record in records if record is not None]


def _read_from(file: BinaryIO, offset: int, size: int) -> bytes:
    """Return whole lines: the first one that begins behind the offset, and those after it."""
    file.seek(offset)
    file.readline()
    return file.read(size)


def _line_at(file: BinaryIO, offset: int) -> Record | None:
    """Return the first step that begins behind an offset, if it is one of the next two lines."""
    file.seek(offset)
    if offset:
        file.readline()
    for _ in range(2):
        record = read_line(file.readline())
        if record is not None and record["kind"] == "step":
            return record
    return None
