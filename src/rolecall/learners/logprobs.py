"""Computes log-probs of chosen tokens from logits or from the hidden states behind them.

Legend: M = sampled tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGEST_LOGITS = 2**26  # that are held at once, 256 MB in float32


def logits_to_logprobs(
    logits: Tensor, ids: Tensor, temperature: Tensor, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the log-prob of tokens [M] under logits [M, V] / temperature [M], and the entropies
    [M].
    """
    scaled = logits.float() / temperature[:, None]
    # Not log_softmax, which would keep one more number for every token of the vocabulary.
    total = scaled.logsumexp(-1)
    sampled = scaled.gather(-1, ids[:, None])[:, 0] - total
    if not entropy:
        return sampled, None
    logprobs = scaled.log_softmax(-1)
    return sampled, -(logprobs.exp() * logprobs).sum(-1)


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    ids: Tensor,
    temperature: Tensor,
    *,
    entropy: bool,
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
    return torch.cat(sampled), torch.cat(entropies) if entropy else None
