"""Pays the world's score of an episode as its reward."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode


async def correct(episode: Episode, world: World) -> dict[str, float]:
    """What `World.score` found: for the team, for single agents, or both.

    An agent that the workflow pays itself has no share of it: it would be paid twice.
    """
    found = {"team": episode.metrics["score"]} if "score" in episode.metrics else {}
    for name, value in episode.metrics.items():
        if name.startswith("score/"):
            found[name.removeprefix("score/")] = value
    paid = {turn.agent for turn in episode.turns if turn.paid is not None}
    if not paid:
        return found
    team = found.pop("team", None)
    for agent in sorted({turn.agent for turn in episode.turns} - paid):
        if team is not None:
            found[agent] = found.get(agent, 0.0) + team
    return {name: value for name, value in found.items() if name not in paid}
