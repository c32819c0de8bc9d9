"""Log-probs and advantages of single ids in; the clipped objective and its sum out."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rolecall.core import Batch

Aggregation = Literal["token", "turn_mean", "turn_sum"]
LARGEST_LOG_RATIO = 20.0  # beyond it exp() is useless and soon infinite


def clipped_objective(
    logprobs: Tensor, anchor: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """C(rho, A) = min(rho A, clamp(rho, 1 - low, 1 + high) A) for each id [N], and where it clips.

    low .2, high .28: (rho 1.3, A +1) -> 1.28; (0.7, -1) -> -0.8; (1.3, -1) -> -1.3.
    """
    log_ratio = (logprobs - anchor).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    free = ratio * advantages
    bounded = ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return torch.minimum(free, bounded), bounded < free


def aggregate(
    per_token: Tensor, batch: Batch, *, agg: Aggregation, turn_length: int | None
) -> tuple[Tensor, float]:
    """Sum of a masked loss [N] and what to divide it by, both to be added over micro-batches.

    Turns of 2 and 6 ids, A = +1 and -1, rho = 1: `token` 4 / 8, `turn_mean` 0 / 2, `turn_sum`
    with turn_length 10: 0.4 / 2.
    """
    if agg == "token":
        return per_token.sum(), float(batch.num_tokens)
    if agg == "turn_mean":
        length = torch.from_numpy(batch.turn_length).to(per_token.device)
        return (per_token / length).sum(), float(batch.num_turns)
    assert turn_length is not None, "turn_sum needs its constant"
    return per_token.sum() / turn_length, float(batch.num_turns)
