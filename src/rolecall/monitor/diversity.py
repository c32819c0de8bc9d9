"""Measures how much agents differ: an agent from itself, and teammates of one role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from rolecall.core.diversity import (
    Bigrams,
    mean_distance,
    token_bigrams,
    turns_by_agent,
    word_bigrams,
)
from rolecall.core.types import Group


def diversity_metrics(groups: Iterable[Group], roles: Mapping[str, str]) -> dict[str, float]:
    """Return {"agent/solver/diversity": .., "role/debater/diversity": ..}, each from 0 to 1.

    The first is the mean distance of an agent's attempts at one task, over tasks with at least two
    attempts; the second that of agents who play one role in an episode, over episodes. `roles`:
    by agent.
    """
    measured: defaultdict[str, list[float]] = defaultdict(list)

    def note(name: str, answers: list[Bigrams]) -> None:
        if (value := mean_distance(answers)) is not None:
            measured[f"{name}/diversity"].append(value)

    for group in groups:
        attempts: defaultdict[str, list[Bigrams]] = defaultdict(list)
        for episode in group:
            by_role: defaultdict[str, list[Bigrams]] = defaultdict(list)
            for agent, turns in turns_by_agent(episode).items():
                attempts[agent].append(token_bigrams(turns))
                role = roles.get(agent, agent)
                if sum(other == role for other in roles.values()) > 1:
                    by_role[role].append(word_bigrams(turns))
            for role, answers in by_role.items():
                note(f"role/{role}", answers)
        for agent, answers in attempts.items():
            note(f"agent/{agent}", answers)
    return {name: fmean(values) for name, values in sorted(measured.items())}
