"""GSPO (2507.18071): one importance ratio for a whole utterance.

The ratio is the geometric mean of its tokens' ratios, so an utterance is clipped as a whole.
Degenerate: where it is 1 (one optimizer step in a batch, anchor the learner) GSPO is GRPO.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import per_turn
from rolecall.core.types import Batch


class Gspo(Grpo):
    """GRPO's advantages; clipping of utterances, whose ratios stay far nearer to 1 than tokens'."""

    clip_low: float = Field(3e-4, ge=0, lt=1)
    """The ratio of an utterance counts no lower than 1 - clip_low."""
    clip_high: float = Field(4e-4, ge=0, le=1000)
    """The ratio of an utterance counts no higher than 1 + clip_high."""
    minibatches: int = Field(4, ge=1, le=100_000)

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Compute the token form of section 4.2, in which advantages may differ by token.

        Each token has the ratio exp(mean(logprobs - anchor)) of its utterance and the gradient of
        its own log-prob.

        logprobs - anchor = [.1, -.1, .3], A 1: ratio 1.105171.
        """
        mask = torch.from_numpy(batch.mask).to(logprobs.device)
        lengths = per_turn(mask, batch).clamp(min=1.0)
        turn = torch.from_numpy(batch.turn).long().to(logprobs.device)
        mean = (per_turn((logprobs.detach() - anchor) * mask, batch) / lengths)[turn]
        own = mean + logprobs - logprobs.detach()
        return super().objective(own, torch.zeros_like(anchor), advantages, batch)
