"""REINFORCE++ (2501.03262): KL as a cost of each token, returns to go, whitening over the batch.

Degenerate: constant returns give 0. The baseline variant first centres each task's attempts, so
that a constant group stays at 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import compare
from rolecall.algorithms.losses import Estimator
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.whitening import whiten
from rolecall.core.credit import Discounted
from rolecall.core.types import Episode


class ReinforcePlusPlus(ClippedLoss, Algorithm):
    """Return of a token: what its turn earns from here on; compared over all tokens of a policy."""

    min_group: ClassVar[int] = 1

    kl: float = Field(0.01, ge=0, le=1000)
    kl_in: Literal["loss", "reward"] = "reward"
    """Whether the KL is a loss, or taken from the reward of each token (as old - ref)."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one token of a turn to the next."""
    reward_clip: float = Field(10.0, gt=0, le=1e6)
    """Scores count within plus and minus this."""

    def credit(self, episodes: list[Episode]) -> None:
        """Credit each token with the discounted rewards from it on, whitened over all tokens.

        Turns of 1 and 3 tokens with rewards 1 and 0 -> [1.5], [-.5, -.5, -.5].
        """
        turns = self.credited_turns(episodes)
        for episode, turn in turns:
            score = np.clip(episode.total(turn), -self.reward_clip, self.reward_clip)
            amounts = {"outcome": episode.outcome(turn.agent), "own": turn.score}
            term = Discounted(float(score), amounts, self.gamma, self.token_rewards(turn))
            turn.give_credit(term)
            turn.returns = turn.advantages
        whiten(turns, centre=True)


class ReinforcePlusPlusBaseline(ClippedLoss, Algorithm):
    """Each agent centred on its attempts at a task, then divided by the spread over the batch."""

    kl: float = Field(0.01, ge=0, le=1000)
    kl_form: Estimator = "k2"
    reward_clip: float = Field(10.0, gt=0, le=1e6)
    """Scores count within plus and minus this."""

    def credit(self, episodes: list[Episode]) -> None:
        """Credit turns with their reward minus the group's mean, divided by all tokens' spread.

        Groups [1, 0] and [1, 1] -> 1.224745, -1.224745, 0, 0.
        """
        turns = self.credited_turns(episodes)
        compare(
            turns, mean="agent", std="none", count="episode_agent", own=self.own_reward,
            several=True, limit=self.reward_clip,
        )  # fmt: skip
        whiten(turns, centre=False)
