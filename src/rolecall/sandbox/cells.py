"""Runs the cells of a notebook in a sandbox, and reports what each printed and showed."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rolecall.sandbox.base import Ran, Run
from rolecall.sandbox.bubblewrap import Boxes, Bubblewrap
from rolecall.sandbox.inside import cells

SCRIPT = Path(cells.__file__).read_text()


@dataclass(frozen=True, slots=True)
class Cell:
    """One that finished; raising is finishing too."""

    stdout: str
    stderr: str
    display: list[dict[str, str]] = field(default_factory=list)  # MIME type -> text
    error: list[dict[str, str | list[str]]] = field(
        default_factory=list
    )  # ename, evalue, traceback


CELL = TypeAdapter(Cell)


async def run_cells(
    sandbox: Bubblewrap, sources: Sequence[str], *, run: Run, cell_s: float = 0.0
) -> tuple[list[Cell], Ran]:
    """Run `sources` one after the other in one Python; files and limits are those of `run`.

    The run's wall time is that of all cells together, `cell_s` that of each (0: no own limit).
    On a timeout the finished cells and the files are still there. Raises SandboxError.
    """
    return await sandbox.work(lambda boxes: _play(boxes, sources, run, cell_s))


def _play(boxes: Boxes, sources: Sequence[str], run: Run, cell_s: float) -> tuple[list[Cell], Ran]:
    box = boxes.open(dataclasses.replace(run, code=SCRIPT, language="python"), talks=True)
    deadline = time.monotonic() + run.limits.wall_s
    box.say(json.dumps({"output_bytes": run.limits.output_bytes}).encode())
    played: list[Cell] = []
    for source in sources:
        box.say(json.dumps(source).encode())
        own = min(deadline, time.monotonic() + cell_s) if cell_s else deadline
        reply = box.hear(own)
        cell = None if reply is None else read_cell(reply)
        if cell is None:
            return played, box.finish(stop=True)
        played.append(cell)
    return played, box.finish()


def read_cell(told: bytes) -> Cell | None:
    """Return the cell; None if our script did not write it: the cells may have, in its place."""
    try:
        return CELL.validate_json(told)
    except ValidationError:
        return None
