"""Scores of an evaluation task by task, to pair with those of another evaluation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from rolecall.core.json_types import Record
from rolecall.monitor.comparison import Measure
from rolecall.rollout.evaluation_summary import over_tasks

COLUMNS = ("source", "task", "question", "episode", "score")  # of an evaluation's Parquet file


class TaskKey(NamedTuple):
    """Identity of a task in two evaluations."""

    source: str
    task: str
    question: str


def average_attempts(rows: Iterable[Record]) -> dict[TaskKey, float]:
    """Return the mean score of the attempts at each task, from one row for every turn.

    Attempts without a finite score are left out, as are tasks that have no other attempts.
    """
    attempts: dict[TaskKey, dict[str, float]] = defaultdict(dict)
    for row in rows:
        score = row["score"]
        if isinstance(score, int | float) and math.isfinite(score):
            key = TaskKey(row["source"] or "", row["task"] or "", row["question"] or "")
            attempts[key][row["episode"] or ""] = score
    return {key: fmean(scores.values()) for key, scores in attempts.items()}


def measure_differences(differences: list[float]) -> Measure:
    """Return the mean of paired differences, of which there is at least one, with its margin."""
    score = over_tasks(differences)
    return Measure(score.mean, score.margin)
