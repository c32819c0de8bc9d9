"""Samples tokens from logits with one uniform number a row, and returns their log-probs.

Tokens come from inverting the distribution function, so that a row's draws depend on its own seed
only, never on its neighbours in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rolecall.core.interfaces.engine import Sampling
from rolecall.models.cpu import kernels
from rolecall.models.cpu.kernels import flat, runs_on_numba

BLOCK = 256  # tokens that are summed at once
LIKELY = (1e-2, 1e-4, 1e-8, 0.0)  # as shares of the likeliest token: more are looked at if needed


def draw(
    logits_B_V: Tensor,
    uniform_B: Tensor,
    temperature_B: Tensor,
    special: list[tuple[int, Sampling]],
) -> tuple[Tensor, Tensor]:
    """Return tokens [B] and their log-probs [B] under the distribution that they were sampled from.

    `special`: rows that are filtered or greedy. At temperature 0 the most likely token is taken,
    with its log-prob under the plain softmax.
    """
    if special:
        temperature_B = temperature_B.where(temperature_B > 0, 1.0)
    if len(special) < len(logits_B_V):
        way = _walked if runs_on_numba(logits_B_V) else _drawn
        ids_B, logprobs_B = way(logits_B_V, uniform_B, temperature_B)
    else:
        ids_B, logprobs_B = torch.zeros_like(uniform_B).long(), torch.zeros_like(temperature_B)
    for row, sampling in special:
        scaled_V = logits_B_V[row] / temperature_B[row]
        ids_B[row], logprobs_B[row] = _drawn_of_kept(scaled_V, uniform_B[row], sampling)
    return ids_B, logprobs_B


def _drawn(logits_B_V: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    logprobs_B_V = (logits_B_V / temperature_B[:, None]).log_softmax(-1)
    ids_B = _inverted(logprobs_B_V.exp(), uniform_B)
    return ids_B, logprobs_B_V.gather(-1, ids_B[:, None])[:, 0]


def _walked(logits_B_V: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the same on a CPU, in one pass."""
    kernels.use_threads()
    rows, size = logits_B_V.shape
    ids_B, logprobs_B = torch.empty(rows, dtype=torch.long), logits_B_V.new_empty(rows)
    kernels.draw(
        flat(logits_B_V.contiguous()), flat(temperature_B), flat(uniform_B), size, flat(ids_B),
        flat(logprobs_B),
    )  # fmt: skip
    return ids_B, logprobs_B


def _inverted(weights_B_V: Tensor, uniform_B: Tensor) -> Tensor:
    """Return the first token at which the weights' running sum passes uniform * their whole sum.

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


def _drawn_of_kept(scaled_V: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return one row's token and its log-prob among what top-k, then top-p keep, renormalised."""
    greedy = sampling.temperature == 0.0
    if greedy and not sampling.top_k and sampling.top_p == 1.0:
        logprob, chosen = scaled_V.max(-1)
        return chosen, logprob - scaled_V.logsumexp(-1)
    ids_K, weights_K = _kept(scaled_V, sampling)
    index = weights_K.argmax() if greedy else _inverted(weights_K[None], uniform[None])[0]
    return ids_K[index], (weights_K[index] / weights_K.sum()).log().float()


def _kept(scaled_V: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens [K] by number, and their weights, which are 0 of those that are not kept.

    The token that crosses top_p is kept. Only likely ones are put in order, of 150,000 a few.
    """
    weights_V = (scaled_V - scaled_V.max()).exp()
    whole, top_k = weights_V.sum(dtype=torch.float64), min(sampling.top_k, len(weights_V))
    for least in LIKELY:
        ids_K = (~(weights_V < least)).nonzero()[:, 0]  # NaN stays
        weights_K = weights_V[ids_K].double()
        if bool(len(ids_K) >= top_k if top_k else weights_K.sum() >= sampling.top_p * whole):
            break
    ordered_K, order = weights_K.sort(descending=True)
    if top_k:
        ordered_K[top_k:] = 0.0
        whole = ordered_K.sum()
    before_K = ordered_K.cumsum(-1) - ordered_K
    ordered_K[before_K >= sampling.top_p * whole] = 0.0
    return ids_K, torch.empty_like(weights_K).scatter_(0, order, ordered_K)
