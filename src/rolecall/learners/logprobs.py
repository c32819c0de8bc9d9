"""Computes log-probs of chosen tokens from logits or from the hidden states behind them.

Entropies come without a gradient as "value", which costs little, and with one as "gradient".

Legend: M = sampled tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGEST_LOGITS = 2**26  # that are held at once, 256 MB in float32
# Logits whose entropies are computed at once: as many as stay in a processor's cache, and more on a
# GPU, whose kernels should be few.
CPU_BLOCK, GPU_BLOCK = 2**18, 2**24

Entropy = Literal["value", "gradient"] | None


def logits_to_logprobs(
    logits: Tensor, ids: Tensor, temperature: Tensor, *, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Return the log-prob of tokens [M] under logits [M, V] / temperature [M], and the entropies
    [M].
    """
    scaled = logits.float() / temperature[:, None]
    # Not log_softmax, which would keep one more number for every token of the vocabulary.
    total = scaled.logsumexp(-1)
    sampled = scaled.gather(-1, ids[:, None])[:, 0] - total
    if entropy is None:
        return sampled, None
    if entropy == "value":
        return sampled, measure_entropies(logits, temperature)
    logprobs = scaled.log_softmax(-1)
    return sampled, -(logprobs.exp() * logprobs).sum(-1)


@torch.no_grad()
def measure_entropies(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the entropies [M], in nats, of logits [M, V] / temperature [M], without a gradient."""
    entropies = torch.empty_like(temperature, dtype=torch.float32)
    block = CPU_BLOCK if logits.device.type == "cpu" else GPU_BLOCK
    rows = max(1, block // logits.shape[1])
    for start in range(0, len(logits), rows):
        chunk = slice(start, start + rows)
        logprobs = (logits[chunk].float() / temperature[chunk, None]).log_softmax(-1)
        entropies[chunk] = -(logprobs.exp() * logprobs).sum(-1)
    return entropies


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    ids: Tensor,
    temperature: Tensor,
    *,
    entropy: Entropy,
    rows: int,
) -> tuple[Tensor, Tensor | None]:
    """Return the same from what the head reads [M, hidden_size], at most [rows, V] at once.

    The backward pass computes each chunk's logits again.
    """

    def chunk(*columns: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits_to_logprobs(head(columns[0]), columns[1], columns[2], entropy=entropy)

    columns = (column.split(rows) for column in (states, ids, temperature))
    parts = [
        checkpoint(chunk, *chunked, use_reentrant=False) for chunked in zip(*columns, strict=True)
    ]
    sampled, entropies = zip(*parts, strict=True)
    return torch.cat(sampled), None if entropy is None else torch.cat(entropies)
