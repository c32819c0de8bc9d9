"""Compares what the team scored before and after: whole, by family and by source."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import Any

Record = dict[str, Any]  # one line of metrics.jsonl
OVER_SOURCES = "over_sources"  # of an evaluation: the means of the sources' means
TEST = "test"  # the split of an evaluation that names none


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over tasks and half the width of its 95 % confidence interval."""

    mean: float
    margin: float | None  # None: of a single task

    def __str__(self) -> str:
        """Return `0.412 +- 0.031`, or `0.412 +- n/a`."""
        return f"{self.mean:.3f} +- {'n/a' if self.margin is None else f'{self.margin:.3f}'}"


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one family or data source, before and after."""

    metric: str  # e.g. avg@8
    part: str  # "" for all together
    num_tasks: int
    before: Measure | None
    after: Measure | None

    @property
    def gain(self) -> Measure | None:
        """After minus before. Its margin takes the two as independent, which is too wide rather
        than too narrow: both are measured on the same tasks.
        """
        if self.before is None or self.after is None:
            return None
        margins = self.before.margin, self.after.margin
        margin = None if None in margins else hypot(*margins)  # type: ignore[arg-type]
        return Measure(self.after.mean - self.before.mean, margin)


def evaluations(records: list[Record], *, split: str = TEST) -> list[Record]:
    """Return the evaluations on the tasks of one split, in their order."""
    tested = [record for record in records if record.get("kind") == "evaluation"]
    return [record for record in tested if record.get("split", TEST) == split]


def steps(records: list[Record]) -> list[Record]:
    return [record for record in records if record.get("kind") == "step"]


def compare(records: list[Record]) -> list[Change]:
    """First evaluation on the test split against the last, for every metric: the whole, then each
    family and source where there are several.

    With one evaluation there is no `after`; with none the list is empty.
    """
    tested = evaluations(records)
    if not tested:
        return []
    before, after = tested[0], tested[-1] if len(tested) > 1 else {}
    parts = [*_parts("by_family", before, after), *_parts("by_source", before, after)]
    if OVER_SOURCES in before or OVER_SOURCES in after:
        both = before.get(OVER_SOURCES, {}), after.get(OVER_SOURCES, {})
        parts.insert(0, ("mean over sources", both))
    changes = []
    whole = metric_names(before) or metric_names(after)
    for metric in whole:
        changes.append(_change(metric, "", before, after))
        having = [(n, both) for n, both in parts if metric in (_metrics_of_both(both) or whole)]
        changes += [_change(metric, name, *both) for name, both in having]
    # Where sources have different numbers of attempts, each has metrics of its own.
    own = {m: None for _, both in parts for record in both for m in metric_names(record)}
    for metric in [name for name in own if name not in whole]:
        having = [(name, both) for name, both in parts if metric in _metrics_of_both(both)]
        changes += [_change(metric, name, *both) for name, both in having]
    return changes


def _metrics_of_both(records: tuple[Record, Record]) -> list[str]:
    return [name for record in records for name in metric_names(record)]


def metric_names(record: Record) -> list[str]:
    """Return the names that have a margin: {"avg@8": .., "avg@8_margin": .., "step": ..} ->
    ["avg@8"].
    """
    return [name for name in record if f"{name}_margin" in record]


def measure(record: Record, metric: str) -> Measure | None:
    mean = record.get(metric)
    return None if mean is None else Measure(mean, record.get(f"{metric}_margin"))


def _parts(kind: str, before: Record, after: Record) -> list[tuple[str, tuple[Record, Record]]]:
    """Return each part's name and what either evaluation says of it; [] if there is only one
    part."""
    first, last = before.get(kind, {}), after.get(kind, {})
    names = sorted({*first, *last})
    if len(names) < 2:
        return []
    return [(name, (first.get(name, {}), last.get(name, {}))) for name in names]


def _change(metric: str, part: str, before: Record, after: Record) -> Change:
    num_tasks = after.get("num_tasks") or before.get("num_tasks") or 0
    return Change(metric, part, num_tasks, measure(before, metric), measure(after, metric))
