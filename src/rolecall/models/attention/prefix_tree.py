"""Computes attention over packed prefix trees without padding, for the CPU.

In float32 and bfloat16 numba's loops do it (`models/cpu/tree_attention.py`), else PyTorch's flash
attention.

Legend: N = tokens in the flat row, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from rolecall.core.types import NO_PARENT, Ids
from rolecall.models.attention.score_rule import ScoreRule
from rolecall.models.attention.tree_scores import TreeScores
from rolecall.models.cpu.tree_attention import Blocks, TreeAttention, make_blocks

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


LOOPED = (torch.float32, torch.bfloat16)  # both are computed in float32
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class PrefixTreeAttention:
    """Each token sees itself and its ancestors in its own prefix tree: training on shared prefixes.

    parent [-1, 0, 1, 1] has the branches [0, 2), [2, 3), [3, 4): tokens between which nothing
    forks. A branch attends to itself, and all that follows from it to the branch: slices of the
    flat row, nothing padded, no pair computed that is not seen.
    """

    def __init__(self, parent: Ids, depth: Ids) -> None:
        ends = subtree_ends(parent, depth)
        forks = np.flatnonzero(parent != np.arange(-1, len(parent) - 1))
        starts = np.union1d(np.append(forks, 0), parent[forks] + 1)
        stops = np.append(starts[1:], len(parent))
        # Outer branches first: what follows from one is merged in after what came before it.
        self.branches = [
            (int(start), int(stop), int(ends[stop - 1]))
            for start, stop in zip(starts, stops, strict=True)
        ]
        self.parent, self.longest = parent, int(depth.max()) + 1
        self._scores = TreeScores(ends, depth)

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
        rule = None if rule is None else rule.within(self.longest)
        if rule is not None:
            return self._scores.attend(query, key, value, scale=scale, rule=rule)
        if query.dtype in LOOPED and query.shape[-1] % 8 == 0:
            inputs = (x.float() for x in (query, key, value))
            looped: Tensor = TreeAttention.apply(*inputs, self._blocks, scale)
            return looped.to(query.dtype)
        out: Tensor = _Attend.apply(query, key, value, self.branches, scale)
        return out

    @cached_property
    def _blocks(self) -> Blocks:
        return make_blocks(self.branches)


class _Attend(Function):
    """Flash attention branch by branch, merged by the logarithms of the softmaxes' sums.

    The backward pass of each part takes the merged output and sums, as in ring attention
    (2310.01889), so that parts of gradients add up.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        branches: list[tuple[int, int, int]],
        scale: float,
    ) -> Tensor:
        num_heads, size, head_size = query.shape
        groups = (len(key), num_heads // len(key))
        q, k, v = _grouped(query, key, value)
        out = query.new_empty(size, num_heads, head_size)
        o = out.unflatten(1, groups).permute(1, 2, 0, 3)  # [K, H / K, N, D]
        exact = torch.promote_types(query.dtype, torch.float32)
        sums = query.new_empty(size, num_heads, dtype=exact)
        s = sums.unflatten(1, groups).permute(1, 2, 0)
        for start, stop, _ in branches:
            own = slice(start, stop)
            o[:, :, own], s[:, :, own] = _flash(
                q[:, :, own], k[:, :, own], v[:, :, own], 0.0, True, scale=scale
            )
        for start, stop, end in branches:
            if stop < end:
                own, below = slice(start, stop), slice(stop, end)
                more, more_sums = _flash(
                    q[:, :, below], k[:, :, own], v[:, :, own], 0.0, False, scale=scale
                )
                share = (more_sums - s[:, :, below]).sigmoid().unsqueeze(-1).to(out.dtype)
                o[:, :, below] = o[:, :, below].lerp(more, share)
                s[:, :, below] = s[:, :, below].logaddexp(more_sums)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.branches, ctx.scale = branches, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        groups = (len(key), len(query) // len(key))
        q, k, v = _grouped(query, key, value)
        o, g = (x.unflatten(1, groups).permute(1, 2, 0, 3) for x in (out, grad))
        s = sums.unflatten(1, groups).permute(1, 2, 0)
        dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        grouped_dq = dq.unflatten(0, groups)

        def parts(rows: slice, own: slice, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            gradients: tuple[Tensor, Tensor, Tensor] = _flash_backward(
                g[:, :, rows], q[:, :, rows], k[:, :, own], v[:, :, own], o[:, :, rows],
                s[:, :, rows], 0.0, causal, scale=ctx.scale,
            )  # fmt: skip
            return gradients

        for start, stop, _ in ctx.branches:
            own = slice(start, stop)
            grouped_dq[:, :, own], part_k, part_v = parts(own, own, True)
            torch.sum(part_k, 1, out=dk[:, own])
            torch.sum(part_v, 1, out=dv[:, own])
        for start, stop, end in ctx.branches:
            if stop < end:
                own, below = slice(start, stop), slice(stop, end)
                part_q, part_k, part_v = parts(below, own, False)
                grouped_dq[:, :, below] += part_q
                dk[:, own] += part_k.sum(1)
                dv[:, own] += part_v.sum(1)
        return dq, dk, dv, None, None


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Group heads without copies: [H, N, D] and [K, N, D] -> [K, H / K, N, D] each."""
    groups = (len(key), len(query) // len(key))
    k, v = (x.unsqueeze(1).expand(-1, groups[1], -1, -1) for x in (key, value))
    return query.unflatten(0, groups), k, v


def paths(parent: Ids) -> list[Ids]:
    """Return the tokens of each branch from its root to its last token, whole.

    parent [-1, 0, 1, 1] -> [[0, 1, 2], [0, 1, 3]].
    """
    last = np.ones(len(parent), dtype=bool)
    last[parent[parent != NO_PARENT]] = False
    branches = []
    for leaf in np.flatnonzero(last):
        path = [int(leaf)]
        while (before := int(parent[path[-1]])) != NO_PARENT:
            path.append(before)
        branches.append(np.array(path[::-1]))
    return branches


def subtree_ends(parent: Ids, depth: Ids) -> Ids:
    """Return the index after each token's last descendant: [N], for tokens in depth-first order.

    parent [-1, 0, 1, 1], depth [0, 1, 2, 2] -> [4, 4, 3, 4]. A token's descendants end where the
    next branch starts that is no deeper than it.
    """
    size = len(parent)
    ends = np.full(size, size, dtype=np.int32)
    branches = np.flatnonzero(parent != np.arange(-1, size - 1))
    branches = np.union1d(branches, np.flatnonzero(parent == NO_PARENT))
    stops = np.append(branches, size)
    for number, start in enumerate(branches):
        inside = depth[start : stops[number + 1]]
        later = branches[number + 1 :]
        if len(later):
            shallowest = np.minimum.accumulate(depth[later])
            first = np.searchsorted(-shallowest, -inside, side="left")
            ends[start : stops[number + 1]] = np.append(later, size)[first]
    return ends
