"""Lets several ranks share a long row: each has some of its tokens and, in attention, some heads.

Around the attention of a layer tokens of all heads are exchanged for heads of all tokens, and back
(Ulysses, 2309.14509), so attention itself sees the whole row and its prefix tree. The log-probs of
all tokens are then put together on every rank, which all compute the same loss; each takes back the
gradient of its own tokens.

Legend: C = ranks that share a row, N = its tokens with padding, n = N / C, H = heads, D = their
size.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from rolecall.core.types import NO_PARENT, Batch
from rolecall.learners.forward import LogProbs, Row
from rolecall.models.attention.layouts import Layout, make_layout
from rolecall.models.attention.score_rule import ScoreRule
from rolecall.models.language_model import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup

    from rolecall.models.autograd.function_context import FunctionContext


@cache
def sharers(size: int) -> ProcessGroup:
    """Return the process group of ranks that share rows with this one: `size` neighbours."""
    count, mine = distributed.get_world_size(), distributed.get_rank()
    groups = [
        distributed.new_group(list(range(start, start + size))) for start in range(0, count, size)
    ]
    return groups[mine // size]


class SharedRow(LogProbs):
    """The log-probs of those sampled tokens whose parents are among this rank's tokens."""

    def __init__(self, policy: LanguageModel, size: int) -> None:
        super().__init__(policy)
        self.size = size
        self.group = sharers(size)
        self.place = distributed.get_rank() % size

    def row(self, batch: Batch, *, device: torch.device) -> Row:
        number = len(batch.tokens)
        padding = -number % self.size
        own_tokens = (number + padding) // self.size
        start = self.place * own_tokens
        mine = slice(start, start + own_tokens)
        parent = np.pad(batch.parent, (0, padding), constant_values=NO_PARENT)
        positions = np.pad(batch.positions, (0, padding))
        target = self.targets(batch)
        keep, again = np.unique(batch.parent[target] - start, return_inverse=True)
        layout = make_layout(parent, positions, device=device)
        return Row(
            tokens=torch.from_numpy(np.pad(batch.tokens, (0, padding))[mine]).long().to(device),
            positions=torch.from_numpy(positions[mine]).long().to(device),
            layout=HeadsForTokens(layout, self.group, self.size),
            chosen=torch.from_numpy(batch.tokens[target]).long().to(device),
            temperature=torch.from_numpy(batch.temperature[target]).to(device),
            keep=torch.from_numpy(keep).long().to(device),
            again=torch.from_numpy(again).long().to(device),
        )

    def targets(self, batch: Batch) -> NDArray[np.int64]:
        """Return the sampled tokens that this rank predicts."""
        own_tokens = -(-len(batch.tokens) // self.size)
        sampled = np.flatnonzero(batch.mask)
        return sampled[batch.parent[sampled] // own_tokens == self.place]

    def spread(self, batch: Batch, values: Tensor) -> Tensor:
        """Numbers of all ranks' sampled tokens where these stand in the batch, else 0: [N]."""
        target = torch.from_numpy(self.targets(batch)).to(values.device)
        own = values.new_zeros(len(batch.tokens)).index_put((target,), values)
        summed: Tensor = _Together.apply(own, self.group)
        return summed


class HeadsForTokens:
    """A layout of a whole row for ranks that have n of its tokens each."""

    def __init__(self, whole: Layout, group: ProcessGroup, size: int) -> None:
        self.whole, self.group, self.size = whole, group, size

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        rule: ScoreRule | None = None,
    ) -> Tensor:
        """Attend with query [H, n, D] and the like -> [n, H, D].

        Raises ValueError for sinks, which belong to all heads.
        """
        if rule is not None and rule.sinks is not None:
            raise ValueError(
                "learner.context_parallel: ranks cannot share rows of a model whose attention has "
                "sinks; write 1"
            )
        heads = (self._all_tokens(states) for states in (query, key, value))
        out = self.whole.attend(layer, *heads, scale=scale, rule=rule)  # [N, H / C, D]
        parts: Tensor = _Exchange.apply(out.unflatten(0, (self.size, -1)), self.group)
        return parts.transpose(0, 1).flatten(1, 2)

    def _all_tokens(self, part: Tensor) -> Tensor:
        """Exchange heads for tokens: [H, n, D] -> [H / C, N, D]."""
        parts: Tensor = _Exchange.apply(part.unflatten(0, (self.size, -1)), self.group)
        return parts.transpose(0, 1).flatten(1, 2)


class _Exchange(Function):
    """The k-th part [C, ...] goes to rank k, whose own part comes to the same place."""

    @staticmethod
    def forward(ctx: FunctionContext, parts: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grad, ctx.group), None


def _exchanged(parts: Tensor, group: ProcessGroup) -> Tensor:
    parts = parts.contiguous()
    out = torch.empty_like(parts)
    distributed.all_to_all_single(out, parts, group=group)
    return out


class _Together(Function):
    """Numbers of several ranks, each of which has 0 where another one has a number."""

    @staticmethod
    def forward(ctx: FunctionContext, own: Tensor, group: ProcessGroup) -> Tensor:
        summed = own.clone()
        distributed.all_reduce(summed, group=group)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
