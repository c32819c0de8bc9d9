"""Computes attention of rows that lie one after another in one flat row of tokens.

transformers hands query, key and value of all N tokens to the attention function registered here,
which asks the `layout` that the caller passed to the model. So any decoder that supports the
attention interface can train on packed rows and decode from our cache, without a class of ours.

Legend: N = tokens in the flat row, R = rows, L = longest row, H / K = query / key-value heads,
D = head size, S = cache positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rolecall.core.types import NO_PARENT, Ids
from rolecall.models.attention.prefix_tree import PrefixTreeAttention
from rolecall.models.attention.score_rule import ScoreRule

NAME = "rolecall"
NOT_HANDED_ON = "its layers do not hand on what the model is called with"


class Layout(Protocol):
    """Decides which tokens see which."""

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
        """Attend with query [H, N, D], key and value [K, N, D] -> [N, H, D]."""
        ...


_carried: ContextVar[Layout | None] = ContextVar("rolecall_layout", default=None)


@contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
    """Carry the layout for layers that do not hand it on to their attention."""
    token = _carried.set(layout)
    try:
        yield
    finally:
        _carried.reset(token)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: object = None,
    block_indices: object = None,
    position_bias: object = None,
    **_: object,  # dropout, position_ids ...: transformers passes what each family has
) -> tuple[Tensor, None]:
    layer, layout = module.layer_idx, _carried.get() if layout is None else layout
    assert isinstance(layer, int)
    if layout is None:
        raise TypeError(NOT_HANDED_ON)
    if indices is not None or block_indices is not None or position_bias is not None:
        raise TypeError("chosen tokens or biases of positions, which no layout computes")
    rule = None
    if sliding_window is not None or softcap is not None or s_aux is not None:
        rule = ScoreRule(sliding_window, softcap, s_aux)
    out = layout.attend(layer, query[0], key[0], value[0], scale=scaling, rule=rule)
    return out.unsqueeze(0), None


AttentionInterface.register(NAME, _attend)


class Rows:
    """Each token sees the earlier tokens of its own row: training, scoring and prefill.

    Lengths [3, 2] make the index [[0, 1, 2], [3, 4, 4]]: only inside attention are rows padded,
    on the right, where a causal mask hides the padding by itself.
    """

    def __init__(self, lengths: list[int], *, device: torch.device) -> None:
        self.lengths = lengths
        num_rows, longest = len(lengths), max(lengths)
        length_R = torch.tensor(lengths, device=device)
        start_R = length_R.cumsum(0) - length_R
        column_L = torch.arange(longest, device=device)
        self.real = column_L < length_R[:, None]  # [R, L]
        self.index = (start_R[:, None] + column_L).clamp(max=sum(lengths) - 1)  # [R, L]
        self.row = torch.arange(num_rows, device=device)[:, None].expand(-1, longest)[self.real]
        self.position = column_L.expand(num_rows, -1)[self.real]  # [N]

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
        rule = None if rule is None else rule.within(max(self.lengths))
        if rule is not None:
            return self._trees.attend(layer, query, key, value, scale=scale, rule=rule)
        q, k, v = (x[:, self.index].transpose(0, 1) for x in (query, key, value))  # [R, ., L, D]
        out = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
        )
        return out.transpose(1, 2)[self.real]  # [N, H, D]

    @cached_property
    def parent(self) -> Ids:
        """Return for each token the one before it, as in a packed row."""
        parent = np.arange(NO_PARENT, sum(self.lengths) - 1, dtype=np.int32)
        parent[np.cumsum([0, *self.lengths[:-1]])] = NO_PARENT
        return parent

    @cached_property
    def _trees(self) -> Layout:
        """Return these rows as trees without forks."""
        depth = np.concatenate([np.arange(length, dtype=np.int32) for length in self.lengths])
        return make_layout(self.parent, depth, device=self.index.device)


def make_layout(parent: Ids, depth: Ids, *, device: torch.device) -> Layout:
    """Make the layout of a packed row for training; it computes no pair that no token sees."""
    if device.type == "cpu":
        return PrefixTreeAttention(parent, depth)
    from rolecall.models.attention.flex import Flex

    return Flex(parent, depth, device=device)
