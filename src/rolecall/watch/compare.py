"""Answers two runs beside one another: keys that differ, curves, the same tasks in pairs."""

from __future__ import annotations

from pathlib import Path

from rolecall.monitor.paired_tasks import COLUMNS, average_attempts, measure_differences
from rolecall.monitor.reading import newest_evaluation
from rolecall.storage.run_folder import RunFolder
from rolecall.watch.configs import flatten_keys
from rolecall.watch.models import Comparison, PairRow
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows

MOST_PAIRS = 500  # that are listed


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
    pairs, note = pair_tasks(*(newest_evaluation(RunFolder(run.path)) for run in runs))
    differences = [pair.difference for pair in pairs if pair.difference is not None]
    measure = measure_differences(differences) if differences else None
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
        mean=None if measure is None else measure.mean,
        margin=None if measure is None else measure.margin,
        note=note,
    )


def pair_tasks(first: Path | None, second: Path | None) -> tuple[list[PairRow], str]:
    """Return the tasks that two evaluations share, and what the pairs are of."""
    if first is None or second is None:
        return [], "a run without an evaluation has no tasks to pair"
    one, other = (average_attempts(read_rows(file, COLUMNS).records) for file in (first, second))
    pairs = [
        PairRow(
            task=key.task,
            source=key.source,
            first=one[key],
            second=other[key],
            difference=other[key] - one[key],
        )
        for key in sorted(one.keys() & other.keys())
    ]
    steps = [file.stem.partition("-")[2].lstrip("0") or "0" for file in (first, second)]
    if not pairs:
        return [], "the newest evaluations of both share no task"
    return pairs, f"the newest evaluations: after step {steps[0]} and after step {steps[1]}"
