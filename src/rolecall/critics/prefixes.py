"""A critic that expects the team's return after each speaker, also while an episode is played.

Q(s, u_1..u_i) of every prefix of speakers is one number, read off the joint transcript where it
ends. What a turn added is Q after it less Q before it, so that an episode's advantages add up to
Q(s, u) - V(s) (ReAd, 2405.14314).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rolecall.core.types import Episode, Turn
from rolecall.critics.joint import JointCritic
from rolecall.runtime.turn_order import turns_known_before

TEAM = "team"


def prefixes(episode: Episode) -> list[list[Turn]]:
    """Return the played turns one by one, and an empty list for where the last one ends."""
    return [*([turn] for turn in episode.turns if turn.chosen), []]


class PrefixCritic(JointCritic):
    """One output, for the team."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, agents=[TEAM], steps_of=prefixes, **options)

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write what each played turn added, as its estimate."""
        for episode, values in zip(episodes, self.predict_values(episodes), strict=True):
            gains = np.diff(values[:, 0]).tolist()
            for [turn], gain in zip(prefixes(episode)[:-1], gains, strict=True):
                turn.training.estimate = gain

    async def before_and_after(self, turn: Turn, episode: Episode) -> tuple[float, float]:
        """Return the expected return without a proposal, and with it, while others may follow."""
        prefix = replace(episode, turns=[*turns_known_before(turn, episode), turn])
        [values] = self.predict_values([prefix])
        return float(values[-2, 0]), float(values[-1, 0])

    def learn(
        self, episodes: list[Episode], returns: list[float], *, epochs: int
    ) -> dict[str, float]:
        """Regress every prefix of an episode on what the episode came to."""
        targets = [
            np.full((len(prefixes(episode)), 1), earned)
            for episode, earned in zip(episodes, returns, strict=True)
        ]
        return self.fit(episodes, targets, epochs=epochs)
