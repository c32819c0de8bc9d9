"""Pays an agent for turns in the form that is read, whether or not they are right."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode


async def format_share(episode: Episode, world: World) -> dict[str, float]:
    """Return each agent's share of turns that its parser can read; a turn that was cut is not one.

    With `rewards: {correct: 1, format: 0.2}` an agent learns the form before it is ever right.
    """
    valid: dict[str, list[bool]] = defaultdict(list)
    for turn in episode.turns:
        if turn.chosen:
            valid[turn.agent].append(turn.valid and turn.finish != "length")
    return {agent: fmean(values) for agent, values in valid.items()}
