"""Rows of ids lie one after another in one flat row; each layer's queries go in, outputs out.

transformers hands query, key and value of all N ids to the attention function registered here,
which asks the `layout` that the caller passed to the model. So any decoder that supports the
attention interface can train on packed rows and decode from our cache, without a class of ours.

Legend: N = ids in the flat row, R = rows, L = longest row, H / K = query / key-value heads,
D = head size, S = cache positions.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rolecall.core import NO_PARENT, Ids

NAME = "rolecall"


class Layout(Protocol):
    """Which ids see which."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        """query [H, N, D], key and value [K, N, D] -> [N, H, D]."""
        ...


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float,
    **_: object,  # dropout, sliding_window ...: transformers passes what each family has
) -> tuple[Tensor, None]:
    layer = module.layer_idx
    assert isinstance(layer, int)
    out = layout.attend(layer, query[0], key[0], value[0], scale=scaling)
    return out.unsqueeze(0), None


AttentionInterface.register(NAME, _attend)


class Rows:
    """Each id sees the earlier ids of its own row: training, scoring and prefill.

    Lengths [3, 2] make the index [[0, 1, 2], [3, 4, 4]]: only inside attention are rows padded,
    on the right, where a causal mask hides the padding by itself.
    """

    def __init__(self, lengths: list[int], *, device: torch.device) -> None:
        num_rows, longest = len(lengths), max(lengths)
        length_R = torch.tensor(lengths, device=device)
        start_R = length_R.cumsum(0) - length_R
        column_L = torch.arange(longest, device=device)
        self.real = column_L < length_R[:, None]  # [R, L]
        self.index = (start_R[:, None] + column_L).clamp(max=sum(lengths) - 1)  # [R, L]
        self.row = torch.arange(num_rows, device=device)[:, None].expand(-1, longest)[self.real]
        self.position = column_L.expand(num_rows, -1)[self.real]  # [N]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        q, k, v = (x[:, self.index].transpose(0, 1) for x in (query, key, value))  # [R, ., L, D]
        out = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
        )
        return out.transpose(1, 2)[self.real]  # [N, H, D]


class Trees(Rows):
    """Each id sees itself and its ancestors in its own prefix tree: training on shared prefixes.

    parent [-1, 0, 1, 1] makes the mask rows 1000, 1100, 1110, 1101: siblings do not see each
    other. Trees are padded to the largest one, as rows are.
    """

    def __init__(self, parent: Ids, depth: Ids, *, device: torch.device) -> None:
        starts = np.flatnonzero(parent == NO_PARENT)
        super().__init__(np.diff(np.append(starts, len(parent))).tolist(), device=device)
        first_N = starts.repeat(np.diff(np.append(starts, len(parent))))
        end_N = torch.from_numpy(subtree_ends(parent, depth) - first_N).to(device)
        longest = self.index.shape[1]
        column_L = torch.arange(longest, device=device)
        end_R_L = torch.where(self.real, end_N[self.index], 0)
        seen = (column_L <= column_L[:, None]) & (column_L[:, None] < end_R_L[:, None, :])
        # Padding sees itself, because softmax over nothing is not a number.
        self.mask = (seen | torch.eye(longest, dtype=torch.bool, device=device))[:, None]
        self.position = torch.from_numpy(depth).long().to(device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        q, k, v = (x[:, self.index].transpose(0, 1) for x in (query, key, value))  # [R, ., L, D]
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
        )
        return out.transpose(1, 2)[self.real]  # [N, H, D]


def layout_of(parent: Ids, depth: Ids, *, device: torch.device) -> Rows:
    """The cheaper layout of a packed row: `Trees` only where prefixes are shared."""
    starts = np.flatnonzero(parent == NO_PARENT)
    branches = np.flatnonzero(parent != np.arange(-1, len(parent) - 1))
    if len(np.setdiff1d(branches, starts)):
        return Trees(parent, depth, device=device)
    return Rows(np.diff(np.append(starts, len(parent))).tolist(), device=device)


def subtree_ends(parent: Ids, depth: Ids) -> Ids:
    """The index after the last descendant of each id: [N], for ids in depth-first order.

    parent [-1, 0, 1, 1], depth [0, 1, 2, 2] -> [4, 4, 3, 4]. An id's descendants end where the
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
