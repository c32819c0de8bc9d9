"""Computes attention over packed prefix trees by FlexAttention, for GPUs.

Legend: N = tokens in the flat row, B = its blocks, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

from rolecall.core.types import NO_PARENT, Ids
from rolecall.models.attention.flex_proof import attend_checked
from rolecall.models.attention.prefix_tree import subtree_ends
from rolecall.models.attention.score_rule import ScoreRule
from rolecall.models.attention.tree_scores import TreeScores

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxOutput


BLOCK = 128  # tokens
LEAST = 512  # tokens; rows are padded, since each length is compiled anew
# Sizes of a family of shapes that are compiled; one more is an error, not attention without blocks.
# Rows grow by a third or a half from one size to the next, so that 64 are more than can occur.
MOST_SHAPES = 64
# What is tried out before the first use: a tree whose branches end in two blocks, and another row.
TRIED_PARENT = np.arange(-1, 309, dtype=np.int32)
TRIED_PARENT[[200, 260]] = (140, NO_PARENT)
TRIED_DEPTH = np.concatenate([np.arange(200), np.arange(141, 201), np.arange(50)]).astype(np.int32)
TRIED_WINDOW = 20


class Flex:
    """Each token sees itself and its ancestors: q sees k if k <= q < end of k's subtree.

    Only blocks of tokens with a pair that is seen are computed. Padding sees itself. With a window
    it also sees no further than that many positions along its branch. What rules add was run
    uncompiled on a CPU only, never by CUDA's kernels.
    """

    def __init__(self, parent: Ids, depth: Ids, *, device: torch.device) -> None:
        self.size = len(parent)
        self.padding = pad_size(self.size, least=LEAST) - self.size
        own = np.arange(self.size, self.size + self.padding, dtype=np.int32) + 1
        self.parent, self.longest, self.device = parent, int(depth.max()) + 1, device
        self.ends = np.concatenate([subtree_ends(parent, depth), own])
        self.depth = np.concatenate([depth, np.zeros_like(own)])
        self.mask = _block_mask(self.ends, device=device)
        self._windows: dict[int, BlockMask] = {}
        self.compiled = device.type == "cuda"

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
        if not self.compiled:
            return self._by_flex(query, key, value, scale=scale, rule=rule)
        inputs = (query, key, value)
        sums = rule is not None and rule.sinks is not None
        gradients = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        asks = rule and (rule.window is not None, rule.softcap, sums)
        kind = (len(query), len(key), query.shape[-1], query.dtype, asks, gradients)
        return attend_checked(
            "training", self.device, kind=kind,
            tried=lambda: _tried(*inputs, scale=scale, rule=rule, gradients=gradients),
            flex=lambda: self._by_flex(*inputs, scale=scale, rule=rule),
            plain=lambda: self._scores.attend(*inputs, scale=scale, rule=rule or ScoreRule()),
        )  # fmt: skip

    @cached_property
    def _scores(self) -> TreeScores:
        """The plain way, in float32 at least and without a table of all scores."""
        size = self.size
        return TreeScores(self.ends[:size], self.depth[:size], device=self.device)

    def _by_flex(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, rule: ScoreRule | None
    ) -> Tensor:
        q, k, v = (pad(x, (0, 0, 0, self.padding))[None] for x in (query, key, value))
        shape = (len(query), len(key), query.shape[-1], query.dtype)
        if rule is not None:
            mask = self.mask if rule.window is None else self._within(rule.window)
            mixed = attend_with_rule(
                q, k, v, mask=mask, scale=scale, rule=rule, fixed=("training", *shape),
                compiles=self.compiled,
            )  # fmt: skip
            return mixed[0, :, : self.size].transpose(0, 1)
        flex = compile_attention("training", *shape) if self.compiled else flex_attention
        out: Tensor = flex(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=True)
        return out[0, :, : self.size].transpose(0, 1)  # [N, H, D]

    def _within(self, window: int) -> BlockMask:
        if window not in self._windows:
            self._windows[window] = _block_mask(
                self.ends, device=self.device, depth=self.depth, window=window
            )
        return self._windows[window]


def _tried(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, rule: ScoreRule | None,
    gradients: bool,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Yield what FlexAttention and the plain way compute for a few tokens, with heads like these.

    They are pairs of results, and of gradients where there are some.
    """
    layout = Flex(TRIED_PARENT, TRIED_DEPTH, device=query.device)
    layout.compiled = True
    size, width = len(TRIED_PARENT), query.shape[-1]
    samples = [
        draw_like(len(x), size, width, like=query, seed=n) for n, x in enumerate((query, key))
    ]
    samples.append(draw_like(len(key), size, width, like=query, seed=2))
    weight = draw_like(size, len(query), width, like=query, seed=3)
    samples[0] *= spread(scale, width, rule)
    if rule is not None:
        samples.append(draw_like(len(query), like=query, seed=4))  # sinks
    leaves = [x.requires_grad_(gradients) for x in samples]
    if rule is not None:
        rule = replace(
            rule,
            window=rule.window and min(rule.window, TRIED_WINDOW),
            sinks=None if rule.sinks is None else samples[3],
        )
    actual = layout._by_flex(*samples[:3], scale=scale, rule=rule)
    expected = layout._scores.attend(*samples[:3], scale=scale, rule=rule or ScoreRule())
    yield actual, expected
    if gradients:
        inputs = leaves if rule is not None and rule.sinks is not None else leaves[:3]
        ours, theirs = (torch.autograd.grad((x * weight).sum(), inputs) for x in (actual, expected))
        yield from zip(ours, theirs, strict=True)


def spread(scale: float, width: int, rule: ScoreRule | None) -> float:
    """Return by how much to stretch the queries of a trial.

    The scores of standard normal ones are then about 1, or a quarter of a cap, which hardly changes
    smaller ones.
    """
    cap = 0.0 if rule is None else rule.softcap or 0.0
    return max(1.0, cap / 4) / (scale * width**0.5)


def draw_like(*shape: int, like: Tensor, seed: int) -> Tensor:
    """Random numbers that take nothing from the generators of a run."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random).to(like.device, like.dtype)


def pad_size(size: int, *, least: int) -> int:
    """Return the next size of least * 1, 1.5, 2, 3, 4, 6, ...

    There are few sizes, and none is 1.5 times what is needed.
    """
    power = least
    while power < size:
        power *= 2
    between = 3 * power // 4
    return between if least < between >= size else power


@cache
def compile_attention(use: str, *shape: int | torch.dtype, under_rule: bool = False) -> Any:
    """Compile FlexAttention for one use and all that is fixed of its shapes; only a size may
    change.

    PyTorch counts what it compiled by code object, so each has a code object of its own. With one
    for all, several bases that train and decode would reach the limit together.
    """
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    plain = _attend_under_rule if under_rule else _attend
    code = plain.__code__.replace(co_name="_".join(map(str, ("flex", use, *shape))))
    return torch.compile(FunctionType(code, globals()), dynamic=False, fullgraph=True)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    return flex_attention(
        query, key, value, block_mask=block_mask, scale=scale, enable_gqa=enable_gqa
    )


def attend_with_rule(
    query: Tensor, key: Tensor, value: Tensor, *, mask: BlockMask, scale: float, rule: ScoreRule,
    fixed: tuple[str | int | torch.dtype, ...], compiles: bool,
) -> Tensor:  # fmt: skip
    """Attend with query [1, H, N, D], key and value [1, K, S, D] -> [1, H, N, D] under a rule.

    The rule's window is in the mask.

    A sink takes its share of the softmax from the sum of all others: out * sigmoid(sum - sink).
    `fixed`: the use and what is fixed of its shapes, as `compiled` takes them.
    """
    sums = rule.sinks is not None
    attend: Any = _attend_under_rule
    if compiles:
        use, *shape = fixed
        attend = compile_attention(f"{use}_{rule.softcap}_{sums}", *shape, under_rule=True)
    out: Tensor
    out, total = attend(query, key, value, mask, scale, rule.softcap, sums)
    if rule.sinks is not None:
        share = (total - rule.sinks.to(total.dtype)[:, None]).sigmoid()
        out = out * share[..., None].to(out.dtype)
    return out


def _attend_under_rule(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float,
    softcap: float | None, sums: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the result of `flex_attention`, and its softmaxes' log-sums if asked for."""

    def cap_score(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    result: Any = flex_attention(
        query, key, value, score_mod=None if softcap is None else cap_score, block_mask=block_mask,
        scale=scale, enable_gqa=True, return_aux=AuxRequest(lse=True) if sums else None,
    )  # fmt: skip
    return (result[0], result[1].lse) if sums else (result, None)


def _block_mask(
    ends: Ids, *, device: torch.device, depth: Ids | None = None, window: int = 0
) -> BlockMask:
    """Build the mask of subtree ends [B * BLOCK], without a mask of all pairs.

    With a window it is also that of depths.
    """
    ends_B_BLOCK = ends.reshape(-1, BLOCK)
    block = np.arange(len(ends_B_BLOCK))
    before = block < block[:, None]
    some = (block <= block[:, None]) & (ends_B_BLOCK.max(1) > block[:, None] * BLOCK)
    whole = before & (ends_B_BLOCK.min(1) >= (block[:, None] + 1) * BLOCK)
    end_N = torch.from_numpy(ends).to(device)

    def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end_N[k])

    if depth is not None:
        depth_B_BLOCK, depth_N = depth.reshape(-1, BLOCK), torch.from_numpy(depth).to(device)
        least, most = depth_B_BLOCK.min(1), depth_B_BLOCK.max(1)
        some &= least[:, None] - most < window
        whole &= most[:, None] - least < window

        def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & (q < end_N[k]) & (depth_N[q] - depth_N[k] < window)

    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole, device), *_listed(whole, device), BLOCK_SIZE=BLOCK, mask_mod=seen
    )


def _listed(chosen_B_B: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys each block of queries sees, and which, those first."""
    order = np.argsort(~chosen_B_B, axis=1, kind="stable").astype(np.int32)
    count = chosen_B_B.sum(1).astype(np.int32)
    tensors = (torch.from_numpy(x)[None, None].to(device) for x in (count, order))
    return next(tensors), next(tensors)
