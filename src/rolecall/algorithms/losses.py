"""Losses of single tokens from log-probs and advantages, and how they are summed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rolecall.core.types import Batch

Aggregation = Literal["token", "turn_mean", "turn_sum"]
Estimator = Literal["k1", "k2", "k3"]
LARGEST_LOG_RATIO = 20.0  # beyond it exp() is useless and soon infinite


def importance_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def clipped_objective(
    logprobs: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    *,
    low: float,
    high: float,
    dual: float | None = None,
) -> tuple[Tensor, Tensor]:
    """C(rho, A) = min(rho A, clamp(rho, 1 - low, 1 + high) A) of tokens [N], and where it clips.

    low .2, high .28: (rho 1.3, A +1) -> 1.28; (0.7, -1) -> -0.8; (1.3, -1) -> -1.3. With `dual`
    c, a negative A counts at most c times (1912.09729): c 3, (5, -1) -> -3.
    """
    ratio = importance_ratio(logprobs - anchor)
    free = ratio * advantages
    objective = torch.minimum(free, ratio.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual is not None:
        lowest = torch.maximum(objective, dual * advantages)
        objective = torch.where(advantages < 0, lowest, objective)
    return objective, objective != free


def kl_estimate(logprobs: Tensor, reference: Tensor, *, form: Estimator) -> Tensor:
    """KL to the reference from single tokens, d = reference - logprobs: [N].

    d = -0.2: k1 0.2, k2 0.02, k3 0.018731. On-policy, only k2 as a loss has the gradient of the
    KL itself; that of k1 is zero (joschu.net/blog/kl-approx.html).
    """
    d = reference - logprobs
    if form == "k1":
        return -d
    if form == "k2":
        return d * d / 2
    return importance_ratio(d) - 1 - d


def value_loss(values: Tensor, old: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """PPO's clipped value loss for each token [N]; old .5, new 1.0, return .9, clip .2 -> 0.02."""
    bounded = old + (values - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (bounded - returns) ** 2)


def per_turn(values: Tensor, batch: Batch) -> Tensor:
    """Sum over the tokens of each turn: [N] -> [S]."""
    turn = torch.from_numpy(batch.turn).long().to(values.device)
    return values.new_zeros(len(batch.turn_ids)).index_add(0, turn, values)


def aggregate(
    per_token: Tensor, kept: Tensor, batch: Batch, *, agg: Aggregation, turn_length: int | None
) -> tuple[Tensor, float]:
    """Sum of a loss [N] and what to divide it by, both to be added over micro-batches.

    `kept` [N] is 1 for the tokens that carry loss: sampled and not rejected. Turns of 2 and 6
    tokens, A = +1 and -1, rho = 1: `token` 4 / 8, `turn_mean` 0 / 2, `turn_sum` with turn_length
    10: 0.4 / 2.
    """
    per_token = per_token * kept
    length_S = per_turn(kept, batch)
    if agg == "token":
        sampled = float(batch.mask.sum())
        return per_token.sum(), batch.num_tokens - sampled + float(length_S.sum())
    count = batch.num_turns - float((length_S == 0).sum())
    if agg == "turn_mean":
        return (per_turn(per_token, batch) / length_S.clamp(min=1.0)).sum(), count
    assert turn_length is not None, "turn_sum needs its constant"
    return per_token.sum() / turn_length, count
