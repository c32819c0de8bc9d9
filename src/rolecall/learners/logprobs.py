"""Computes log-probs of chosen tokens from logits or from the hidden states behind them.

Entropies come without a gradient as "value", which costs little, and with one as "gradient".

Legend: M = sampled tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rolecall.models.cpu import kernels
from rolecall.models.cpu.kernels import flat, runs_on_numba

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


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
    logits = logits.float()
    if runs_on_numba(logits) and entropy != "gradient":
        with torch.no_grad():
            slopes = logits.clone(memory_format=torch.contiguous_format)
            sampled, entropies = become_slopes(
                slopes, ids, temperature, with_entropies=entropy == "value"
            )
        return attach_slopes(logits, sampled, slopes), entropies
    scaled = logits / temperature[:, None]
    # Not log_softmax, which would keep one more number for every token of the vocabulary.
    total = scaled.logsumexp(-1)
    sampled = scaled.gather(-1, ids[:, None])[:, 0] - total
    if entropy is None:
        return sampled, None
    if entropy == "value":
        return sampled, measure_entropies(logits, temperature)
    logprobs = scaled.log_softmax(-1)
    return sampled, -(logprobs.exp() * logprobs).sum(-1)


def attach_slopes(rows: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    """Return values [M] whose gradients by the rows [M, W] they were computed from are slopes
    [M, W].
    """
    attached: Tensor = _Attached.apply(rows, values, slopes)
    return attached


class _Attached(Function):
    @staticmethod
    def forward(ctx: FunctionContext, rows: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return slopes * grad[:, None].to(slopes.dtype), None, None


def become_slopes(
    logits: Tensor, ids: Tensor, temperature: Tensor, *, with_entropies: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs of the tokens [M], and the entropies [M] if they are wanted; the logits
    [M, V] become the gradients of each log-prob by its logits.
    """
    if runs_on_numba(logits):
        kernels.use_threads()
        logprobs, size = torch.empty_like(temperature), logits.shape[1]
        entropies = torch.empty_like(logprobs if with_entropies else logprobs[:0])
        kernels.slopes(
            flat(logits), flat(ids), flat(temperature), size, flat(logprobs), flat(entropies)
        )
        return logprobs, entropies if with_entropies else None
    measured = measure_entropies(logits, temperature) if with_entropies else None
    scale = 1.0 / temperature[:, None]
    total = logits.mul_(scale).logsumexp(-1, keepdim=True)
    logprobs = (logits.gather(-1, ids[:, None]) - total)[:, 0]
    logits.sub_(total).exp_().mul_(-scale)
    logits.scatter_add_(-1, ids[:, None], scale)
    return logprobs, measured


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
