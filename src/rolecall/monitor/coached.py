"""Sums up what a coach said, failed to say and cost, by role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from rolecall.core.types import Turn


def is_dropped(turn: Turn) -> bool:
    """Whether it is out of everything because its coach gave it no score."""
    return bool(turn.coach_error) and not turn.trained


def of_coach(turns: Iterable[Turn]) -> dict[str, float]:
    """{"coach/solver/score": .. in 0..10, "coach/solver/errors": .., "coach/tokens": ..,
    "coach/cost_usd": .., "coach/latency_s": mean of those that were asked}; {} without a coach.
    """
    scores: defaultdict[str, list[float]] = defaultdict(list)
    errors: defaultdict[str, int] = defaultdict(int)
    usages = []
    for turn in turns:
        if turn.coach is not None:
            scores[turn.agent].append(turn.coach.final.score)
            usages += [note.usage for note in (turn.coach, turn.coach.hindsight) if note]
        errors[turn.agent] += bool(turn.coach_error)
    found: dict[str, float] = {}
    for agent in sorted(errors):
        if scores[agent]:
            found[f"coach/{agent}/score"] = fmean(scores[agent])
        if scores[agent] or errors[agent]:
            found[f"coach/{agent}/errors"] = errors[agent]
    asked = [usage for usage in usages if usage["tries"]]
    if asked:
        found["coach/tokens"] = sum(u["prompt_tokens"] + u["completion_tokens"] for u in asked)
        found["coach/cost_usd"] = sum(usage["cost_usd"] for usage in asked)
        found["coach/latency_s"] = fmean(usage["latency_s"] for usage in asked)
    return found
