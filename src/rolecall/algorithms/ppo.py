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

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.losses import value_loss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.whitening import whiten
from rolecall.core.credit import Amounts, TokenAdvantage
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
            made_of: list[Amounts] = [{"own": turn.score} for turn in turns]
            outcome = episode_of[turns[0].id].outcome(turns[0].agent)
            made_of[-1] = {**made_of[-1], "outcome": outcome}
            self.chain(turns, made_of)
        if self.whiten:
            whiten(credited, centre=True)

    def chain(self, turns: list[Turn], made_of: list[Amounts]) -> None:
        """Credit and returns of the tokens of turns that follow one another; each turn's score, the
        sum of what it is made of, is earned with its last token.
        """
        next_value = next_advantage = 0.0
        for turn, amounts in reversed([*zip(turns, made_of, strict=True)]):
            values = turn.training.values
            assert values is not None, f"no critic has valued turn {turn.id}"
            term = TokenAdvantage(
                sum(amounts.values()), amounts, self.gamma, self.gamma_turn, self.lam,
                next_value, next_advantage, self.token_rewards(turn),
            )  # fmt: skip
            turn.give_credit(term)
            advantages = term.advantages(values)
            turn.returns = (advantages + values).astype(np.float32)
            next_value, next_advantage = float(values[0]), float(advantages[0])


class Ppo(PpoLoss, ValueHeadCredit):
    """Credit of a token: what came after it, less what the agent's value head expected."""
