"""Advantage actor-critic (1602.01783) without a clip, with a value head on each agent's policy.

The synchronous form, A2C; IA2C for a team. Degenerate: lam = gamma = 1 gives A = G - V.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.losses import importance_ratio
from rolecall.algorithms.ppo import Ppo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch


class A2c(Ppo):
    """PPO's credit, one optimizer step, and the plain policy gradient A grad log p."""

    without_effect: ClassVar[tuple[str, ...]] = (
        "clip_low", "clip_high", "dual_clip", "clip_value",
    )  # fmt: skip

    lam: float = Field(1.0, ge=0, le=1)
    """1 trusts returns, 0 trusts values."""
    value_coef: float = Field(0.5, ge=0, le=1000)
    """Weight of the value loss beside the policy's."""
    whiten: bool = False
    """Give the advantages of a policy's tokens mean 0 and spread 1."""
    epochs: int = Field(1, ge=1, le=1000)
    """Epochs over the turns of a step; in all but the first step the importance ratio multiplies
    the advantage."""

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return rho A, whose gradient is A grad log p while rho is 1."""
        return importance_ratio(logprobs - anchor) * advantages, torch.zeros_like(logprobs)

    def more_terms(self, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        assert outputs.values is not None, "A2C needs its value head"
        returns = torch.from_numpy(batch.returns).to(outputs.values.device)
        return {"value_loss": self.value_coef * 0.5 * (outputs.values - returns) ** 2}
