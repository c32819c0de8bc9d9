"""Pays the world's score of an episode as its reward."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode


async def correct(episode: Episode, world: World) -> dict[str, float]:
    """Return the scores of `World.score`: for the team, for single agents, or both.

    An agent that the workflow pays itself has no share of it: it would be paid twice.
    """
    paid_to = dict(episode.scores)
    paid = {turn.agent for turn in episode.turns if turn.paid is not None}
    if not paid:
        return paid_to
    team = paid_to.pop("team", None)
    for agent in sorted({turn.agent for turn in episode.turns} - paid):
        if team is not None:
            paid_to[agent] = paid_to.get(agent, 0.0) + team
    return {name: value for name, value in paid_to.items() if name not in paid}
