"""Logits and one uniform number a row in; sampled ids and their log-probs out.

Ids come from inverting the distribution function, so that a row's draws depend on its own seed
only, never on its neighbours in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rolecall.engines.base import Sampling


def draw(logits_B_V: Tensor, uniform_B: Tensor, samplings: list[Sampling]) -> tuple[Tensor, Tensor]:
    """-> ids [B] and their log-probs [B] under the distribution they were drawn from.

    At temperature 0 the most likely id is taken, with its log-prob under the plain softmax.
    """
    temperature_B = logits_B_V.new_tensor([s.temperature or 1.0 for s in samplings])
    logprobs_B_V = (logits_B_V / temperature_B[:, None]).log_softmax(-1)
    for row, sampling in enumerate(samplings):
        if sampling.top_k or sampling.top_p < 1.0:
            logprobs_B_V[row] = _filtered(logprobs_B_V[row], sampling)
    # float64: over 150,000 ids a float32 running sum is off by more than rare ids weigh.
    cdf_B_V = logprobs_B_V.double().exp().cumsum(-1)
    level_B = uniform_B.double() * cdf_B_V[:, -1]
    ids_B = torch.searchsorted(cdf_B_V, level_B[:, None], right=True)[:, 0]
    ids_B = ids_B.clamp(max=logits_B_V.shape[1] - 1)
    greedy_B = torch.tensor([s.temperature == 0.0 for s in samplings], device=ids_B.device)
    ids_B = torch.where(greedy_B, logprobs_B_V.argmax(-1), ids_B)
    return ids_B, logprobs_B_V.gather(-1, ids_B[:, None])[:, 0]


def _filtered(logprobs_V: Tensor, sampling: Sampling) -> Tensor:
    """Top-k, then top-p, renormalised; the id that crosses top_p is kept."""
    ordered, ids = logprobs_V.sort(descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    mass = ordered.exp().where(keep, 0.0)
    before = mass.cumsum(-1) - mass
    keep &= before < sampling.top_p * mass.sum()
    out = torch.full_like(logprobs_V, float("-inf"))
    out[ids[keep]] = ordered[keep]
    return out.log_softmax(-1)
