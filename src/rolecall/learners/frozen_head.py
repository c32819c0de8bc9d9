"""Computes log-probs of chosen tokens behind a head that is not trained, and their gradient.

Of such a head only the gradient by what it reads is wanted, and that is known up to one factor a
token before any loss is: d log p(a) / d state = (W_a - sum_v p(v) W_v) / temperature. So it is
computed with the log-probs, chunk by chunk, and no logits are kept or computed again.

Legend: M = sampled tokens, W = width of a state, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Linear, Module

from rolecall.learners.logprobs import Entropy, attach_slopes, become_slopes
from rolecall.models.exact_head import has_mixed_product


def is_frozen(head: Module) -> bool:
    """Return whether it is a linear layer that nothing trains."""
    return isinstance(head, Linear) and not any(p.requires_grad for p in head.parameters())


def frozen_head_logprobs(
    head: Module, states: Tensor, ids: Tensor, temperature: Tensor, *, entropy: Entropy, rows: int,
    vocabulary: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the log-prob of tokens [M] under head(states [M, W])[:, :vocabulary] / temperature
    [M], and the entropies [M] as a value.

    Never holds more than [rows, V]. Without a gradient by the temperature. Raises ValueError for
    entropies with a gradient.
    """
    if entropy == "gradient":
        raise ValueError("the entropy of a frozen head has no gradient here")
    assert isinstance(head, Linear)
    needs_slopes = states.requires_grad and torch.is_grad_enabled()
    logprobs = torch.empty_like(ids, dtype=torch.float32)
    entropies = None if entropy is None else torch.empty_like(logprobs)
    with torch.no_grad():
        slopes = torch.empty_like(states) if needs_slopes else None
        mixed = has_mixed_product(states, head.weight)
        weight = head.weight[:vocabulary] if mixed else head.weight[:vocabulary].float()
        for start in range(0, len(ids), rows):
            chunk = slice(start, start + rows)
            logits = head(states[chunk])[:, :vocabulary].float().contiguous()
            logprobs[chunk], measured = become_slopes(
                logits, ids[chunk], temperature[chunk], with_entropies=entropies is not None
            )
            if entropies is not None and measured is not None:
                entropies[chunk] = measured
            if slopes is not None:
                slopes[chunk] = logits.to(weight.dtype) @ weight
    return logprobs if slopes is None else attach_slopes(states, logprobs, slopes), entropies
