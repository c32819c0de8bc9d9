"""RLOO (2402.14740): the baseline of an attempt is the mean of the other attempts.

Rewards [1, 0, 0] -> [1, -.5, -.5]. Degenerate: a single attempt gets 0. Advantages keep the unit of
the reward.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.groups import Baseline, Level, leave_one_out_mean
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation
from rolecall.core.types import Batch


class Rloo(Grpo):
    """Each agent against itself; a whole utterance is one action, so its log-probs are summed."""

    baseline: ClassVar[Baseline] = staticmethod(leave_one_out_mean)

    mean: Level = "agent"
    """Whose scores an agent's are measured from: all of the attempts at a task, its own in them
    (`agent`), or all of the step (`global`); those of its own episode are left out."""
    std: Literal["task", "agent", "global", "none"] = "none"
    agg: Aggregation = "turn_sum"
    turn_length: int | None = Field(1, ge=1, le=10_000_000)
    """The constant of `agg: turn_sum`."""
    kl_in: Literal["loss", "reward"] = "reward"

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Plain policy gradient, A log p; the clipped one where a rollout is used several times."""
        if self.needs_prox:
            return super().objective(logprobs, anchor, advantages, batch)
        return logprobs * advantages, torch.zeros_like(logprobs)
