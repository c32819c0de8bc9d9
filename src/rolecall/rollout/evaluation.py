"""Scores a team on held-out tasks: avg@n and pass@k by source, with confidence intervals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import comb, sqrt
from statistics import fmean, stdev
from typing import Any

from rolecall.rollout.collection import collect
from rolecall.rollout.episodes import Manner, Rollout, RolloutContext
from rolecall.types import Group, Task


@dataclass(frozen=True, slots=True)
class Score:
    """A mean over tasks, as a fraction, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float | None  # 1.96 standard errors of the mean over tasks
    num_tasks: int


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that one of k samples is correct: 1 - C(n - c, k) / C(n, k) (2107.03374, eq. 1).

    pass_at_k(8, 2, 1) -> 0.25; unbiased because it averages over all k-subsets of the n samples.
    """
    if not 0 < k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples (there are {num_samples})")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def over_tasks(values: list[float]) -> Score:
    """Mean and margin. One value has no margin: attempts at one task are not independent."""
    margin = 1.96 * stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return Score(fmean(values), margin, len(values))


def summarise(groups: list[Group], *, samples: int, k: int) -> dict[str, Any]:
    """{"avg@8": .., "avg@8_margin": .., "pass@8": .., ..., "num_tasks": .., "by_source": {..}}.

    "by_family" too, where environments are mixed.
    """
    parts: dict[str, dict[str, list[Group]]] = {"by_source": defaultdict(list)}
    for group in groups:
        task = group[0].task
        parts["by_source"][task.source].append(group)
        if task.family:
            parts.setdefault("by_family", defaultdict(list))[task.family].append(group)
    return _scores(groups, samples=samples, k=k) | {
        kind: {name: _scores(part, samples=samples, k=k) for name, part in sorted(found.items())}
        for kind, found in parts.items()
    }


def _scores(groups: list[Group], *, samples: int, k: int) -> dict[str, Any]:
    average, passed = [], []
    for group in groups:
        scores = [episode.headline or 0.0 for episode in group]
        average.append(fmean(scores))
        if len(group) >= k:
            passed.append(pass_at_k(len(group), sum(score >= 1.0 for score in scores), k))
    found: dict[str, Any] = {}
    for name, values in ((f"avg@{samples}", average), (f"pass@{k}", passed)):
        if values:
            score = asdict(over_tasks(values))
            found |= {name: score["mean"], f"{name}_margin": score["margin"]}
    return found | {"num_tasks": len(groups)}


def held_out(tasks: Iterable[Task], *, per_source: int) -> list[Task]:
    """The first `per_source` tasks of each data source, of each family."""
    taken: Counter[tuple[str, str]] = Counter()
    kept = []
    for task in tasks:
        source = (task.family, task.source)
        if taken[source] < per_source:
            taken[source] += 1
            kept.append(task)
    return kept


async def evaluate(
    context: RolloutContext,
    tasks: list[Task],
    *,
    samples: int,
    k: int,
    greedy: bool,
    split: str = "test",
) -> tuple[dict[str, Any], Rollout]:
    """Play every task `samples` times. The same seeds in every call, so that calls compare.

    `coverage` is the share of the attempts that could be scored: those that something outside of
    the team let down are in no mean.
    """
    rollout = await collect(
        context.in_manner(Manner(tries_out=False, greedy=greedy)),
        tasks,
        step="evaluation",
        split=split,
        group_size=samples,
    )
    if not rollout.groups:
        raise RuntimeError(f"every evaluation episode failed; the first: {rollout.first_error}")
    found = summarise(rollout.groups, samples=samples, k=k)
    measures = getattr(context.environment, "measures", None)  # of all episodes together
    if measures is not None:
        found |= measures(rollout.episodes)
    coverage = len(rollout.episodes) / (len(tasks) * samples)
    return found | {"coverage": coverage, "failures": dict(rollout.failures)}, rollout
