"""Sums up what a coach said, failed to say and cost, by role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from rolecall.core.types import Turn


def is_dropped(turn: Turn) -> bool:
    """Return whether a turn is out of everything because its coach gave it no score."""
    return bool(turn.coach.error) and not turn.trained


def coach_metrics(turns: Iterable[Turn]) -> dict[str, float]:
    """Return {"coach/solver/score": .. in 0..10, "coach/solver/errors": .., "coach/tokens": ..,
    "coach/cost_usd": .., "coach/latency_s": mean of those that were asked}; {} without a coach.
    """
    scores: defaultdict[str, list[float]] = defaultdict(list)
    errors: defaultdict[str, int] = defaultdict(int)
    usages = []
    for turn in turns:
        if (note := turn.coach.note) is not None:
            scores[turn.agent].append(note.final.score)
            usages += [one.usage for one in (note, note.hindsight) if one]
        errors[turn.agent] += bool(turn.coach.error)
    metrics: dict[str, float] = {}
    for agent in sorted(errors):
        if scores[agent]:
            metrics[f"coach/{agent}/score"] = fmean(scores[agent])
        if scores[agent] or errors[agent]:
            metrics[f"coach/{agent}/errors"] = errors[agent]
    paid = [usage for usage in usages if usage["tries"]]
    if paid:
        metrics["coach/tokens"] = sum(u["prompt_tokens"] + u["completion_tokens"] for u in paid)
        metrics["coach/cost_usd"] = sum(usage["cost_usd"] for usage in paid)
        metrics["coach/latency_s"] = fmean(usage["latency_s"] for usage in paid)
    return metrics
