"""Answers one task through the training: its attempts at some steps, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite
from rolecall.watch.group import make_cell, show_reference
from rolecall.watch.index import TurnIndex
from rolecall.watch.models import Attempt, Cell, TaskAttempts, TaskHistory
from rolecall.watch.refusals import Unanswerable, UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.signs import by_episode
from rolecall.watch.tables import read_rows

COLUMNS = (
    "task", "source", "question", "reference", "episode", "attempt", "score", "turn", "agent",
    "path", "text", "finish", "valid", "trained", "chosen", "advantage",
)  # fmt: skip
MOST_STEPS = 12  # beside one another


def answer_task(
    run: WatchedRun, index: TurnIndex, task: str, source: str | None, steps: str | None
) -> TaskHistory:
    """Return the attempts at a task at some steps: the first, middle and last if none is named."""
    present = list_task_steps(index, task, source)
    if not present:
        raise UnknownNameError(f"run {run.name!r} has no attempts at task {task!r} on disk")
    shown = choose_steps(present, steps)
    history, first = [], None
    for step in shown:
        rows = read_rows(run.episode_file(step), COLUMNS, [("task", "=", task)]).records
        rows = [row for row in rows if source is None or (row["source"] or "") == source]
        if rows:
            first = first or rows[0]
            history.append(_show_step(step, rows))
    if first is None:
        raise UnknownNameError(f"run {run.name!r} has no attempts at task {task!r} on disk")
    return TaskHistory(
        run=run.name,
        task=task,
        source=first["source"] or "",
        question=first["question"] or "",
        reference=show_reference(first["reference"]),
        steps=history,
        all_steps=present,
    )


def list_task_steps(index: TurnIndex, task: str, source: str | None) -> list[int]:
    """Return the steps in which a task was played, rising."""
    steps: set[int] = set()
    for columns in index.iterate_columns():
        numbers = [n for n, name in enumerate(columns.names["task"].texts) if name == task]
        rows = np.isin(columns.values["task"], numbers)
        if source is not None:
            sources = columns.names["source"].texts
            rows &= np.isin(
                columns.values["source"], [n for n, name in enumerate(sources) if name == source]
            )
        steps.update(np.unique(columns.step[rows]).tolist())
    return sorted(steps)


def choose_steps(present: Sequence[int], steps: str | None) -> list[int]:
    """Return the steps of `10,60,200` in which the task was played; raises Unanswerable."""
    if not steps:
        middle = present[len(present) // 2]
        return sorted({present[0], middle, present[-1]})
    try:
        named = [int(one) for one in steps.split(",")]
    except ValueError as error:
        raise Unanswerable(f"steps: {steps!r} is no list of numbers; write 10,60,200") from error
    if len(named) > MOST_STEPS:
        raise Unanswerable(f"steps: {len(named)} are named; write at most {MOST_STEPS}")
    return [step for step in dict.fromkeys(named) if step in set(present)]


def _show_step(step: int, rows: Sequence[Record]) -> TaskAttempts:
    attempts, turns = [], []
    scores: list[float] = []
    seen: set[tuple[tuple[int, ...], str]] = set()
    for episode, own in by_episode(rows).items():
        score = finite(own[0]["score"])
        scores += [] if score is None else [score]
        attempts.append(Attempt(episode=episode, attempt=own[0]["attempt"] or 0, score=score))
        turns.append(_show_turns(own, seen))
    mean = fmean(scores) if scores else None
    return TaskAttempts(step=step, attempts=attempts, mean=mean, turns=turns)


def _show_turns(rows: Sequence[Record], seen: set[tuple[tuple[int, ...], str]]) -> list[Cell]:
    cells = []
    for row in rows:
        if row["turn"] is not None:
            key = tuple(row["path"] or ()), row["text"] or ""
            cells.append(make_cell(row, is_new=key not in seen))
            seen.add(key)
    return cells
