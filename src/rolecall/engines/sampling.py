"""Samples tokens from logits with one uniform number a row, and returns their log-probs.

Tokens come from inverting the distribution function, so that a row's draws depend on its own seed
only, never on its neighbours in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rolecall.interfaces.engine import Sampling
from rolecall.models.cpu import kernels
from rolecall.models.cpu.kernels import flat, runs_on_numba

BLOCK = 256  # tokens that are summed at once


def draw(
    logits_B_V: Tensor,
    uniform_B: Tensor,
    temperature_B: Tensor,
    special: list[tuple[int, Sampling]],
) -> tuple[Tensor, Tensor]:
    """-> tokens [B] and their log-probs [B] under the distribution they were sampled from.

    `special`: rows that are filtered or greedy. At temperature 0 the most likely token is taken,
    with its log-prob under the plain softmax.
    """
    if special:
        temperature_B = temperature_B.where(temperature_B > 0, 1.0)
    on_cpu = runs_on_numba(logits_B_V)
    ids_B, logprobs_B = (_walked if on_cpu else _drawn)(logits_B_V, uniform_B, temperature_B)
    for row, sampling in special:
        logprobs_V = (logits_B_V[row] / temperature_B[row]).log_softmax(-1)
        if sampling.top_k or sampling.top_p < 1.0:
            logprobs_V = _filtered(logprobs_V, sampling)
        one = _inverted(logprobs_V.exp()[None], uniform_B[row, None])[0]
        ids_B[row] = logprobs_V.argmax() if sampling.temperature == 0.0 else one
        logprobs_B[row] = logprobs_V[ids_B[row]]
    return ids_B, logprobs_B


def _drawn(logits_B_V: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    logprobs_B_V = (logits_B_V / temperature_B[:, None]).log_softmax(-1)
    ids_B = _inverted(logprobs_B_V.exp(), uniform_B)
    return ids_B, logprobs_B_V.gather(-1, ids_B[:, None])[:, 0]


def _walked(logits_B_V: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same on a CPU, in one pass."""
    kernels.use_threads()
    rows, size = logits_B_V.shape
    ids_B, logprobs_B = torch.empty(rows, dtype=torch.long), logits_B_V.new_empty(rows)
    kernels.draw(
        flat(logits_B_V.contiguous()), flat(temperature_B), flat(uniform_B), size, flat(ids_B),
        flat(logprobs_B),
    )  # fmt: skip
    return ids_B, logprobs_B


def _inverted(weights_B_V: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token at which the running sum of the weights passes uniform * their whole sum.

    Sums are float64: over 150,000 tokens a float32 running sum is off by more than rare tokens
    weigh. They are made of blocks, so that only one block a row is summed token by token.
    """
    rows, size = weights_B_V.shape
    blocks = -(-size // BLOCK)
    padded = torch.nn.functional.pad(weights_B_V, (0, blocks * BLOCK - size))
    parts = padded.view(rows, blocks, BLOCK)
    ends = parts.sum(-1, dtype=torch.float64).cumsum(-1)
    level = uniform_B.double() * ends[:, -1]
    block = torch.searchsorted(ends, level[:, None], right=True).clamp(max=blocks - 1)
    before = torch.cat([ends.new_zeros(rows, 1), ends], -1).gather(1, block)
    chosen = parts.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0]
    inside = torch.searchsorted(chosen.double().cumsum(-1), level[:, None] - before, right=True)
    ids = (block * BLOCK + inside.clamp(max=BLOCK - 1))[:, 0].clamp(max=size - 1)
    # Rounding may end one token too far, on one that cannot be drawn.
    impossible = weights_B_V.gather(1, ids[:, None])[:, 0] == 0
    if impossible.device.type == "cpu" and not bool(impossible.any()):
        return ids  # asking a GPU would be waiting for it
    return ids.where(~impossible, weights_B_V.argmax(-1))


def _filtered(logprobs_V: Tensor, sampling: Sampling) -> Tensor:
    """Top-k, then top-p, renormalised; the token that crosses top_p is kept."""
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
