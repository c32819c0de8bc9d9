"""Computes attention over packed prefix trees under a score rule by plain products.

On a CPU flash attention knows no window along a branch, no soft-capping and no sinks; on a GPU this
stands in where FlexAttention does not hold. Scores are made of a slice of the flat row at a time,
against those tokens only that some token of the slice sees.

Legend: N = tokens in the flat row, H / K = query / key-value heads, G = H / K, D = head size, L =
tokens of a slice, S = tokens that the slice sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from rolecall.core.types import Ids
from rolecall.models.attention.score_rule import ScoreRule

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


SLICE = 128  # tokens
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens that stand together in the flat row, and what they see."""

    own: slice
    seen: Tensor  # [S] indices, of all that any of them sees
    hidden: Tensor  # [L, S] what of it each of them does not see


class TreeScores:
    """The slices of a packed row, made once for each window."""

    def __init__(self, ends: Ids, depth: Ids, *, device: torch.device = CPU) -> None:
        """Set up the scores of a tree.

        ends [N]: the index after each token's last descendant; depth [N]: its position.
        """
        self.ends, self.depth, self.device = ends, depth, device
        self._slices: dict[int | None, list[Slice]] = {}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, rule: ScoreRule
    ) -> Tensor:
        """Attend with query [H, N, D], key and value [K, N, D] -> [N, H, D]."""
        if rule.window not in self._slices:
            self._slices[rule.window] = list(self._made(rule.window))
        slices = self._slices[rule.window]
        sinks = query.new_zeros(0) if rule.sinks is None else rule.sinks
        out: Tensor = _Attend.apply(query, key, value, sinks, slices, scale, rule.softcap)
        return out

    def _made(self, window: int | None) -> list[Slice]:
        """Positions count along a branch: a token's distance to an ancestor is that of depths."""
        slices, size, depth = [], len(self.ends), self.depth
        for start in range(0, size, SLICE):
            stop = min(size, start + SLICE)
            maybe = self.ends[:stop] > start
            if window is not None:
                maybe &= depth[:stop] > depth[start:stop].min() - window
            seen = np.flatnonzero(maybe)
            token = np.arange(start, stop)[:, None]
            hidden = (seen > token) | (token >= self.ends[seen])
            if window is not None:
                hidden |= depth[start:stop, None] - depth[seen] >= window
            index, mask = (torch.from_numpy(x).to(self.device) for x in (seen, hidden))
            slices.append(Slice(slice(start, stop), index, mask))
        return slices


class _Attend(Function):
    """Nothing of the size of the scores is kept for the backward pass, which makes them again."""

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor,
        slices: list[Slice],
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        num_heads, size, head_size = query.shape
        groups = (len(key), num_heads // len(key))
        out = query.new_empty(size, num_heads, head_size)
        exact = torch.promote_types(query.dtype, torch.float32)
        totals = query.new_empty(num_heads, size, dtype=exact)
        q, o = query.unflatten(0, groups), out.unflatten(1, groups).permute(1, 2, 0, 3)
        t, more = totals.unflatten(0, groups), _grouped(sinks, groups, exact)
        for rows in slices:
            scores = _scores(q, key, rows, scale, softcap)
            total = scores.logsumexp(-1)
            if more is not None:
                total = total.logaddexp(more)
            weights = (scores - total[..., None]).exp()
            t[:, :, rows.own] = total
            o[:, :, rows.own] = _times(weights, value[:, rows.seen].to(exact)).to(out.dtype)
        ctx.save_for_backward(query, key, value, sinks, out, totals)
        ctx.slices, ctx.scale, ctx.softcap = slices, scale, softcap
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, out, totals = ctx.saved_tensors
        groups, exact = (len(key), len(query) // len(key)), totals.dtype
        q, t = query.unflatten(0, groups), totals.unflatten(0, groups)
        o, g = (x.to(exact).unflatten(1, groups).permute(1, 2, 0, 3) for x in (out, grad))
        along = (o * g).sum(-1)  # [K, G, N]
        dq = query.new_empty(q.shape, dtype=exact)
        dk, dv = (x.new_zeros(x.shape, dtype=exact) for x in (key, value))
        for rows in ctx.slices:
            scores = _scores(q, key, rows, ctx.scale, ctx.softcap)
            weights = (scores - t[:, :, rows.own, None]).exp()
            own = g[:, :, rows.own]
            dv[:, rows.seen] += _transposed_times(weights, own)
            pull = _times(own, value[:, rows.seen].to(exact).transpose(1, 2))
            pull = weights * (pull - along[:, :, rows.own, None])
            if ctx.softcap is not None:
                slope = 1.0 - (scores / ctx.softcap).square()
                pull = (pull * slope).masked_fill(rows.hidden, 0.0)
            pull = pull * ctx.scale
            dq[:, :, rows.own] = _times(pull, key[:, rows.seen].to(exact))
            dk[:, rows.seen] += _transposed_times(pull, q[:, :, rows.own].to(exact))
        more = _grouped(sinks, groups, exact)
        dsinks = None
        if more is not None:
            dsinks = -((more - t).exp() * along).sum(-1).flatten().to(sinks.dtype)
        gradients = (x.to(query.dtype) for x in (dq.flatten(0, 1), dk, dv))
        return *gradients, dsinks, None, None, None


def _scores(q: Tensor, key: Tensor, part: Slice, scale: float, softcap: float | None) -> Tensor:
    """Return the scores [K, G, L, S] of a slice; -inf where nothing is seen."""
    exact = torch.promote_types(q.dtype, torch.float32)
    k = key[:, part.seen].to(exact)
    scores = _times(q[:, :, part.own].to(exact), k.transpose(1, 2)) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return scores.masked_fill(part.hidden, -torch.inf)


def _grouped(sinks: Tensor, groups: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    """Group the sinks: [H] -> [K, G, 1]; None if there are none."""
    return sinks.to(dtype).view(*groups, 1) if len(sinks) else None


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Multiply: [K, G, L, A] times [K, A, B] -> [K, G, L, B]."""
    return (x.flatten(1, 2) @ y).unflatten(1, x.shape[1:3])


def _transposed_times(x: Tensor, y: Tensor) -> Tensor:
    """Multiply and sum over the heads of a key: [K, G, L, A] and [K, G, L, B] -> [K, A, B]."""
    return x.flatten(1, 2).transpose(1, 2) @ y.flatten(1, 2)
