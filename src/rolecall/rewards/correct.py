"""A scored episode in, the world's score as a reward out."""

from __future__ import annotations

from rolecall.core import Episode
from rolecall.environments.base import World


async def correct(episode: Episode, world: World) -> dict[str, float]:
    """What `World.score` found: for the team, for single agents, or both."""
    found = {"team": episode.metrics["score"]} if "score" in episode.metrics else {}
    for name, value in episode.metrics.items():
        if name.startswith("score/"):
            found[name.removeprefix("score/")] = value
    return found
