"""RLOO (2402.14740): the baseline of an attempt is the mean of the other attempts.

Degenerate: a single attempt gets 0. Advantages keep the unit of the reward.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import Count, compare, left_out
from rolecall.algorithms.losses import Aggregation
from rolecall.core import Batch, Episode


class Rloo(Algorithm):
    """Each agent against itself; a whole utterance is one action, so its log-probs are summed."""

    keys: ClassVar[tuple[str, ...]] = ("task", "agent")

    count: Count = "episode_agent"
    """What is one sample of the mean: a turn, or an agent's share of an episode."""
    agg: Aggregation = "turn_sum"
    """Mean over all sampled ids, mean of the turns' means, or sum of a turn over a constant."""
    turn_length: int | None = Field(1, ge=1)
    """The constant of `agg: turn_sum`."""

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1, 0, 0] -> [1, -.5, -.5]."""
        compare(
            self.said(episodes),
            keys=self.keys,
            count=self.count,
            norm=left_out,
            own=self.own_reward,
        )

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Plain policy gradient, A log p; the clipped one where a rollout is used several times."""
        if self.needs_prox:
            return super().objective(logprobs, anchor, advantages, batch)
        return logprobs * advantages, torch.zeros_like(logprobs)
