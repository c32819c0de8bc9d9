"""Answers two runs beside one another: keys that differ, curves, the same tasks in pairs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from rolecall.storage.numbered import iterate_numbered
from rolecall.watch.clean_json import finite
from rolecall.watch.configs import flatten_keys
from rolecall.watch.models import Comparison, Number, PairRow
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows

COLUMNS = ("source", "task", "question", "episode", "score")
MOST_PAIRS = 500  # that are listed
Scores = dict[tuple[str, str, str], float]  # (source, task, question) -> mean over its attempts


def answer_compare(first: WatchedRun, second: WatchedRun) -> Comparison:
    """Return the second run less the first."""
    runs = (first, second)
    configs = [flatten_keys(run.config.keys) for run in runs]
    keys = sorted({*configs[0], *configs[1]})
    differs = [
        (key, configs[0].get(key, ""), configs[1].get(key, ""))
        for key in keys
        if configs[0].get(key) != configs[1].get(key)
    ]
    metrics = [run.series.refresh() for run in runs]
    names = sorted({*metrics[0].columns, *metrics[1].columns})
    pairs, note = pair_tasks(*(_newest_evaluation(run) for run in runs))
    differences = [pair.difference for pair in pairs if pair.difference is not None]
    mean, margin = measure_difference(differences)
    return Comparison(
        runs=[first.name, second.name],
        differs=differs,
        same=len(keys) - len(differs),
        series={
            name: [
                (list(one.steps), one.values(name)) if name in one.columns else ([], [])
                for one in metrics
            ]
            for name in names
        },
        pairs=sorted(pairs, key=lambda pair: -abs(pair.difference or 0.0))[:MOST_PAIRS],
        of_pairs=len(pairs),
        mean=mean,
        margin=margin,
        note=note,
    )


def measure_difference(differences: list[float]) -> tuple[Number, Number]:
    """Return the mean of paired differences and half the width of its 95 % interval."""
    if not differences:
        return None, None
    if len(differences) < 2:
        return differences[0], None
    return fmean(differences), 1.96 * stdev(differences) / len(differences) ** 0.5


def pair_tasks(first: Path | None, second: Path | None) -> tuple[list[PairRow], str]:
    """Return the tasks that two evaluations share, and what the pairs are of."""
    if first is None or second is None:
        return [], "a run without an evaluation has no tasks to pair"
    one, other = _read_scores(first), _read_scores(second)
    pairs = [
        PairRow(
            task=task,
            source=source,
            first=one[key],
            second=other[key],
            difference=other[key] - one[key],
        )
        for key in sorted(one.keys() & other.keys())
        for source, task, _ in [key]
    ]
    steps = [file.stem.partition("-")[2].lstrip("0") or "0" for file in (first, second)]
    if not pairs:
        return [], "the newest evaluations of both share no task"
    return pairs, f"the newest evaluations: after step {steps[0]} and after step {steps[1]}"


def _newest_evaluation(run: WatchedRun) -> Path | None:
    files = [file for _, file in iterate_numbered(run.path, "parquet", kind="evaluation")]
    return files[-1] if files else None


def _read_scores(file: Path) -> Scores:
    attempts: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in read_rows(file, COLUMNS).records:
        if (score := finite(row["score"])) is not None:
            key = row["source"] or "", row["task"] or "", row["question"] or ""
            attempts[key][row["episode"] or ""] = score
    return {key: fmean(scores.values()) for key, scores in attempts.items()}
