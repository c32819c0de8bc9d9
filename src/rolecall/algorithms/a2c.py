"""Advantage actor-critic (1602.01783) without a clip, with a value head on each agent's policy.

The synchronous form, A2C; IA2C for a team. Degenerate: lam = gamma = 1 gives A = G - V.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.policy_loss import PolicyLoss
from rolecall.algorithms.ppo import ValueHeadCredit
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch


class A2cLoss(PolicyLoss):
    """The plain policy gradient A grad log p, and the squared error of the value head."""

    value_coef: float = Field(0.5, ge=0, le=1000)
    """Weight of the value loss beside the policy's."""

    def more_terms(self, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        assert outputs.values is not None, "A2C needs its value head"
        returns = torch.from_numpy(batch.returns).to(outputs.values.device)
        return {"value_loss": self.value_coef * 0.5 * (outputs.values - returns) ** 2}


class A2c(A2cLoss, ValueHeadCredit):
    """PPO's credit, one optimizer step, and the plain policy gradient A grad log p."""

    lam: float = Field(1.0, ge=0, le=1)
    whiten: bool = False
    epochs: int = Field(1, ge=1, le=1000)
    """Epochs over the turns of a step; in all but the first step the importance ratio multiplies
    the advantage."""
