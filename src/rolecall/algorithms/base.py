"""Episodes in, advantages on their turns out; a packed batch and its log-probs in, a loss out.

An algorithm is whom a turn is compared with, plus a loss. A new one is a subclass that writes
`credit`; its fields are its hyperparameters and its YAML keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from rolecall.algorithms.losses import Aggregation, aggregate, clipped_objective
from rolecall.core import Batch, Episode


@dataclass(slots=True)
class Outputs:
    """What the learner's forward pass says of a batch."""

    logprobs: Tensor  # [N] float32, 0 where nothing was sampled


@dataclass(slots=True)
class Loss:
    """A sum and what to divide it by; the learner adds both over micro-batches first."""

    total: Tensor  # scalar, not normalised
    count: float
    sums: dict[str, float] = field(default_factory=dict)  # metrics, with the same normaliser


class Algorithm(BaseModel, ABC):
    """Hyperparameters that every algorithm here has, and the clipped policy loss."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    min_group: ClassVar[int] = 2
    """Fewest episodes of a task that can be compared."""

    clip_low: float = Field(0.2, ge=0, lt=1)
    """The probability ratio counts no lower than 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """The probability ratio counts no higher than 1 + clip_high."""
    anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: the learner's log-probs at the start of the update, or the
    sampler's."""
    agg: Aggregation = "token"
    """Mean over all sampled ids, mean of the turns' means, or sum of a turn over a constant."""
    turn_length: int | None = Field(None, ge=1)
    """The constant of `agg: turn_sum`; by default the largest max_tokens of the team."""
    mask_truncated: bool = False
    """Leave turns that were cut by length out of loss and statistics."""

    @abstractmethod
    def credit(self, episodes: list[Episode]) -> None:
        """Write `turn.advantages` [T] of every trained turn. Pure and repeatable."""

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """PPO's clipped objective (1707.06347, eq. 7), negated and summed."""
        logprobs = outputs.logprobs
        old, advantages, weight, mask = (
            torch.from_numpy(column).to(logprobs.device)
            for column in (batch.old_logprobs, batch.advantages, batch.weight, batch.mask)
        )
        anchor = logprobs.detach() if self.anchor == "learner" else old
        objective, clipped = clipped_objective(
            logprobs, anchor, advantages, low=self.clip_low, high=self.clip_high
        )
        per_token = -objective * weight * mask
        total, count = aggregate(per_token, batch, agg=self.agg, turn_length=self.turn_length)
        sums = {"clip_share": float((clipped * mask).sum())}
        return Loss(total=total, count=count, sums=sums)
