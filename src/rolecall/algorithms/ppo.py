"""PPO (1707.06347) with a value head on each agent's own policy: IPPO (2011.09533) for a team.

The turns of an agent in an episode are one chain of tokens; other agents' words between them are
skipped. Degenerate: lam = gamma = 1 gives A = G - V.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms import gae
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.losses import value_loss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.whitening import whiten
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch, Episode, Turn, group_by


class PpoLoss(ClippedLoss):
    """The clipped policy loss, and a clipped loss of the value head beside it."""

    clip_value: float = Field(0.2, gt=0, le=1e6)
    """The value may move this far in one update."""
    value_coef: float = Field(0.1, ge=0, le=1000)
    """Weight of the value loss beside the policy's."""
    epochs: int = Field(4, ge=1, le=1000)

    def more_terms(self, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        assert outputs.values is not None, "PPO needs its value head"
        assert batch.values is not None, "PPO needs values of before"
        device = outputs.values.device
        old, returns = (torch.from_numpy(c).to(device) for c in (batch.values, batch.returns))
        loss = value_loss(outputs.values, old, returns, clip=self.clip_value)
        return {"value_loss": self.value_coef * loss}


class ValueHeadCredit(Algorithm):
    """Credit of a token: what came after it, less what the agent's value head expected."""

    min_group: ClassVar[int] = 1
    critic: ClassVar[str | None] = "agent"

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one token of a turn to the next."""
    gamma_turn: float = Field(1.0, gt=0, le=1)
    """Discount from the last token of a turn to the first of the agent's next turn."""
    lam: float = Field(0.95, ge=0, le=1)
    """1 trusts returns, 0 trusts values."""
    whiten: bool = True
    """Give the advantages of a policy's tokens mean 0 and spread 1."""

    def credit(self, episodes: list[Episode]) -> None:
        """Values [.5, .6] and [.2], outcome 1, lam .95 -> [.442, .36] and [.8]."""
        credited = self.credited_turns(episodes)
        episode_of = {turn.id: episode for episode, turn in credited}
        for turns in group_by([turn for _, turn in credited], "episode", "agent"):
            scores = [turn.score for turn in turns]
            scores[-1] += episode_of[turns[0].id].outcome(turns[0].agent)
            self.chain(turns, scores)
        if self.whiten:
            whiten(credited, centre=True)

    def chain(self, turns: list[Turn], scores: list[float]) -> None:
        """Advantages and returns of the tokens of turns that follow one another; each turn's score
        is earned with its last token.
        """
        lengths = [len(turn.ids[1]) for turn in turns]
        ends = np.cumsum(lengths) - 1
        rewards = np.concatenate([self.kl_rewards(turn) for turn in turns]).astype(np.float64)
        rewards[ends] += scores
        discounts = np.full(len(rewards), self.gamma)
        discounts[ends] = self.gamma_turn
        values = np.concatenate([turn.training.values for turn in turns])
        advantages = gae.advantages(rewards, values, discounts=discounts, lam=self.lam)
        for turn, end, length in zip(turns, ends, lengths, strict=True):
            span = slice(end + 1 - length, end + 1)
            turn.advantages = advantages[span].astype(np.float32)
            turn.returns = (advantages[span] + values[span]).astype(np.float32)


class Ppo(PpoLoss, ValueHeadCredit):
    """Credit of a token: what came after it, less what the agent's value head expected."""
