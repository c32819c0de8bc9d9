"""Chooses what is imitated: attempts in which an agent earned most, and steps that were right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rolecall.algorithms.groups import CreditedTurn
from rolecall.core.types import Episode, Turn


def best_attempts(found: Iterable[CreditedTurn], number: int) -> list[CreditedTurn]:
    """Return the turns of each agent's `number` best attempts at each task; the first of equals.

    What an agent earned in an attempt is its outcome and the own rewards of its played turns.
    Attempts worth [0, 1, 1] with number 1 -> the turns of the second.
    """
    found = list(found)
    earned: dict[tuple[str, str], dict[Episode, float]] = defaultdict(dict)
    for episode, turn in found:
        mine = earned[task_key(episode), turn.agent]
        mine.setdefault(episode, episode.outcome(turn.agent))
        mine[episode] += turn.score if turn.chosen else 0.0
    best = {
        key: sorted(mine, key=lambda e: (-mine[e], e.attempt, e.id))[:number]
        for key, mine in earned.items()
    }
    return [(e, t) for e, t in found if e in best[task_key(e), t.agent]]


def is_right(turn: Turn, least: float) -> bool:
    """Return whether a step's own reward is at least so much; a step without one counts as right.

    least 0: {"penalty": -.1} is wrong, {"coach": .8, "penalty": -.1} and {} are right.
    """
    return not turn.is_scored or turn.score >= least


def task_key(episode: Episode) -> str:
    """Return what tells tasks apart: their ids are unique within a source."""
    return f"{episode.task.family}\n{episode.task.source}\n{episode.task.id}"
