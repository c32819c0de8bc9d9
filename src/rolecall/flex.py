"""Prefix trees of one flat row in, attention by FlexAttention out; for GPUs.

Legend: N = ids in the flat row, B = its blocks, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from rolecall.branches import subtree_ends
from rolecall.core import Ids

BLOCK = 128  # ids
BUCKET = 512  # ids; rows are padded to a multiple, since each length is compiled anew


class Flex:
    """Each id sees itself and its ancestors: a query q sees a key k if k <= q < end of k's subtree.

    Only blocks of ids with a pair that is seen are computed. Padding sees itself.
    """

    def __init__(self, parent: Ids, depth: Ids, *, device: torch.device) -> None:
        self.size = len(parent)
        self.padding = -self.size % BUCKET
        own = np.arange(self.size, self.size + self.padding, dtype=np.int32) + 1
        ends = np.concatenate([subtree_ends(parent, depth), own])
        self.mask = _block_mask(ends, device=device)
        self.compiled = device.type == "cuda"

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        q, k, v = (pad(x, (0, 0, 0, self.padding))[None] for x in (query, key, value))
        flex = _compiled() if self.compiled else flex_attention
        out: Tensor = flex(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=True)
        return out[0, :, : self.size].transpose(0, 1)  # [N, H, D]


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)


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
