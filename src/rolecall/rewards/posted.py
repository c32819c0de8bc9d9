"""Pays what the program of an external workflow has said that an episode is worth."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode

PREFIX = "posted/"  # of the metrics that hold these rewards


def note_posted(episode: Episode, rewards: dict[str, float]) -> None:
    """Note rewards on an episode; a later one of the same owner takes the place of an earlier."""
    episode.metrics |= {f"{PREFIX}{owner}": value for owner, value in rewards.items()}


async def read_posted(episode: Episode, world: World) -> dict[str, float]:
    """Return the rewards that the program posted, by agent or of the team.

    An episode that was cut has 0 if there are none. Raises ValueError for any other without one.
    """
    rewards = {
        name.removeprefix(PREFIX): value
        for name, value in episode.metrics.items()
        if name.startswith(PREFIX)
    }
    if not rewards and episode.is_truncated:
        return {"team": 0.0}
    if not rewards:
        raise ValueError(
            "the program posted no reward: let it return {'answer': ..., 'reward': ...}, or post "
            "{'reward': ...} to the address in ROLECALL_ROLLOUT_URL with /reward behind it"
        )
    return rewards
