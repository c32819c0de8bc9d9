"""Computes attention over packed prefix trees by FlexAttention, for GPUs.

Legend: N = tokens in the flat row, B = its blocks, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from rolecall.models.attention.prefix_tree import subtree_ends
from rolecall.types import Ids

BLOCK = 128  # tokens
LEAST = 512  # tokens; rows are padded, since each length is compiled anew
# Sizes of a family of shapes that are compiled; one more is an error, not attention without blocks.
# Rows grow by a third or a half from one size to the next, so that 64 are more than can occur.
MOST_SHAPES = 64


class Flex:
    """Each token sees itself and its ancestors: q sees k if k <= q < end of k's subtree.

    Only blocks of tokens with a pair that is seen are computed. Padding sees itself.
    """

    def __init__(self, parent: Ids, depth: Ids, *, device: torch.device) -> None:
        self.size = len(parent)
        self.padding = padded(self.size, least=LEAST) - self.size
        own = np.arange(self.size, self.size + self.padding, dtype=np.int32) + 1
        ends = np.concatenate([subtree_ends(parent, depth), own])
        self.mask = _block_mask(ends, device=device)
        self.compiled = device.type == "cuda"

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        q, k, v = (pad(x, (0, 0, 0, self.padding))[None] for x in (query, key, value))
        shape = (len(query), len(key), query.shape[-1], query.dtype)
        flex = compiled("training", *shape) if self.compiled else flex_attention
        out: Tensor = flex(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=True)
        return out[0, :, : self.size].transpose(0, 1)  # [N, H, D]


def padded(size: int, *, least: int) -> int:
    """The next of least * 1, 1.5, 2, 3, 4, 6, ...: few sizes, none 1.5 times what is needed."""
    power = least
    while power < size:
        power *= 2
    between = 3 * power // 4
    return between if least < between >= size else power


@cache
def compiled(use: str, *shape: int | torch.dtype) -> Any:
    """FlexAttention for one use and all that is fixed of its shapes; only a size may change.

    PyTorch counts what it compiled by code object, so each has a code object of its own. With one
    for all, several bases that train and decode would reach the limit together.
    """
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    code = _attend.__code__.replace(co_name="_".join(map(str, ("flex", use, *shape))))
    return torch.compile(FunctionType(code, globals()), dynamic=False, fullgraph=True)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> Any:
    return flex_attention(
        query, key, value, block_mask=block_mask, scale=scale, enable_gqa=enable_gqa
    )


def _block_mask(ends: Ids, *, device: torch.device) -> BlockMask:
    """Of subtree ends [B * BLOCK], without a mask of all pairs."""
    ends_B_BLOCK = ends.reshape(-1, BLOCK)
    block = np.arange(len(ends_B_BLOCK))
    before = block < block[:, None]
    some = (block <= block[:, None]) & (ends_B_BLOCK.max(1) > block[:, None] * BLOCK)
    whole = before & (ends_B_BLOCK.min(1) >= (block[:, None] + 1) * BLOCK)
    end_N = torch.from_numpy(ends).to(device)

    def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end_N[k])

    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole, device), *_listed(whole, device), BLOCK_SIZE=BLOCK, mask_mod=seen
    )


def _listed(chosen_B_B: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each block of queries: how many blocks of keys are chosen, and which, those first."""
    order = np.argsort(~chosen_B_B, axis=1, kind="stable").astype(np.int32)
    count = chosen_B_B.sum(1).astype(np.int32)
    found = (torch.from_numpy(x)[None, None].to(device) for x in (count, order))
    return next(found), next(found)
