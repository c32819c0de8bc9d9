"""Plays held-out tasks and scores the team on them."""

from __future__ import annotations

from typing import Any

from rolecall.config.evaluation import EvaluationConfig
from rolecall.rollout.collection import collect
from rolecall.rollout.episodes import Manner, Rollout, RolloutContext
from rolecall.rollout.scoring import summarise
from rolecall.types import Task


async def evaluate(
    context: RolloutContext,
    tasks: list[Task],
    options: EvaluationConfig,
    *,
    split: str = "test",
) -> tuple[dict[str, Any], Rollout]:
    """Play every task as often as the options say. The same seeds in every call, so that calls
    compare.

    `coverage` is the share of the attempts that could be scored: those that something outside of
    the team let down are in no mean.
    """
    rollout = await collect(
        context.in_manner(Manner(tries_out=False, sampling=options.sampled_with)),
        tasks,
        step="evaluation",
        split=split,
        group_size=lambda task: options.samples_of(task.source),
    )
    if not rollout.groups:
        raise RuntimeError(f"every evaluation episode failed; the first: {rollout.first_error}")
    found = summarise(rollout.groups, options)
    measures = getattr(context.environment, "measures", None)  # of all episodes together
    if measures is not None:
        found |= measures(rollout.episodes)
    asked = sum(options.samples_of(task.source) for task in tasks)
    coverage = len(rollout.episodes) / asked
    return found | {"coverage": coverage, "failures": dict(rollout.failures)}, rollout
