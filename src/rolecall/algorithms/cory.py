"""CORY (2410.06101): pioneer and observer share one reward, and trade places.

The workflow `pioneer_observer` pays both the sum of their answers' scores and swaps the roles;
weights, optimizer state, value head and KL coefficient stay with their policy. Degenerate: equal
rewards leave the KL alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.losses import importance_ratio
from rolecall.algorithms.ppo import Ppo, PpoLoss
from rolecall.core.types import Batch


class CoryLoss(PpoLoss):
    """PPO's loss, less its policy loss where a batch has moved too far."""

    most_ratio: float = Field(10.0, gt=1, le=1e6)
    """A batch of turns whose mean probability ratio is above this has no policy loss."""

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        gains, clipped = super().objective(logprobs, anchor, advantages, batch)
        mask = torch.from_numpy(batch.mask > 0).to(logprobs.device)
        ratio = importance_ratio(logprobs.detach() - anchor)[mask].mean()
        return torch.where(ratio > self.most_ratio, 0.0 * gains, gains), clipped


class Cory(CoryLoss, Ppo):
    """PPO with the KL in the reward of each token, and a coefficient that follows a target."""

    kl: float = Field(0.4, gt=0, le=1000)
    """Coefficient of the KL to the reference as the run begins."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Whether the KL is a loss, or taken from the reward of each token (as old - ref)."""
    kl_target: float | None = Field(6.0, gt=0, le=1e6)
    """KL of a turn, in nats, that the coefficient is moved towards."""
