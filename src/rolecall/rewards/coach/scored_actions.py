"""Rewards each trained action of an episode by the score of a judge."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode
from rolecall.rewards.coach.following import CoachSettings, Following
from rolecall.rewards.coach.scorer import Scorer


class ScoredActions:
    """A reward that scores actions, once they were taken or once the episode is over."""

    weighs_itself = True  # w_process and w_outcome; no other weight has a part in it

    def __init__(self, scorer: Scorer, settings: CoachSettings) -> None:
        self.scorer, self.settings = scorer, settings

    def follow(self, episode: Episode, world: World) -> Following:
        """Return what notes, and if wished judges, each action of an episode as it is taken."""
        return Following(self.scorer, self.settings, episode, world)

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Score the trained actions of a finished episode; nothing is given to whole agents.

        Raises CoachStopError where no action can be scored any more, CoachError for an action
        without a score if `on_error` drops the episode.
        """
        return await self.follow(episode, world)(episode, world)
