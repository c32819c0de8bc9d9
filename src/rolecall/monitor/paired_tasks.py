"""Compares two runs on the held-out tasks that both were evaluated on, task by task."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, stdev

import pyarrow.parquet as pq

from rolecall.monitor.comparison import Measure
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.run_folder import RunFolder

MOST_SHOWN = 3  # tasks of each kind


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task in both runs: the mean score of its attempts."""

    task: str
    question: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Paired:
    """b less a over the tasks that both have; pairs leave out how hard a task is."""

    num_tasks: int
    difference: Measure  # mean over tasks, with the margin of a paired comparison
    better: int  # tasks that b scores higher on
    worse: int
    most_better: list[TaskPair]
    most_worse: list[TaskPair]


def pair_tasks(a: RunFolder, b: RunFolder) -> Paired | None:
    """Compare the newest evaluations of two runs task by task; None where they share no task.

    [1, 0, .5] against [1, .5, 1]: +.333 +- .327, two better, none worse.
    """
    one, other = _scores(a), _scores(b)
    pairs = [
        TaskPair(task, question, one[task, question], other[task, question])
        for task, question in sorted(one.keys() & other.keys())
    ]
    if not pairs:
        return None
    gains = [pair.b - pair.a for pair in pairs]
    margin = 1.96 * stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
    ranked = sorted(pairs, key=lambda pair: pair.a - pair.b)
    return Paired(
        num_tasks=len(pairs),
        difference=Measure(fmean(gains), margin),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        most_better=[pair for pair in ranked[:MOST_SHOWN] if pair.b > pair.a],
        most_worse=[pair for pair in ranked[::-1][:MOST_SHOWN] if pair.b < pair.a],
    )


def _scores(run: RunFolder) -> dict[tuple[str, str], float]:
    """Return the mean score of the attempts at each (task, question) in the run's newest
    evaluation.
    """
    files = [file for _, file in iterate_numbered(run.path, "parquet", kind="evaluation")]
    if not files:
        return {}
    columns = ["source", "task", "question", "episode", "score"]
    scores: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in pq.read_table(files[-1], columns=columns).to_pylist():
        if row["score"] is not None:
            task = f"{row['source']} {row['task']}".strip()
            scores[task, row["question"]][row["episode"]] = row["score"]
    return {key: fmean(attempts.values()) for key, attempts in scores.items()}
