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


class Cache:
    """Keys and values of `rows` requests of up to `length` ids: [rows, K, S, D] a layer."""

    def __init__(
        self, *, layers: int, rows: int, heads: int, length: int, size: int, like: Tensor
    ) -> None:
        shape = (rows, heads, length, size)
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]
        self.rows, self.length = rows, length

    def write(self, layer: int, row: Tensor, position: Tensor, key: Tensor, value: Tensor) -> None:
        """key and value [K, N, D] go to (row [N], position [N])."""
        self.keys[layer][row, :, position] = key.transpose(0, 1)
        self.values[layer][row, :, position] = value.transpose(0, 1)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy whole rows: after requests ended, the last ones fill the holes."""
        for store in (*self.keys, *self.values):
            store[target] = store[source]

    def resized(self, *, rows: int, length: int, held: int) -> Cache:
        """A cache of another size that holds the same keys and values in its first `held` rows."""
        first = self.keys[0]
        cache = Cache(
            layers=len(self.keys), rows=rows, heads=first.shape[1], length=length,
            size=first.shape[3], like=first,
        )  # fmt: skip
        pairs = zip((*self.keys, *self.values), (*cache.keys, *cache.values), strict=True)
        for old, new in pairs:
            both = min(self.length, length)
            new[:held, :, :both] = old[:held, :, :both]
        return cache


class Prefill(Rows):
    """Whole beginnings, whose keys and values are kept in the cache rows `rows`."""

    def __init__(self, lengths: list[int], *, cache: Cache, rows: list[int]) -> None:
        super().__init__(lengths, device=cache.keys[0].device)
        self.cache = cache
        self.cache_row = torch.tensor(rows, device=self.row.device)[self.row]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        self.cache.write(layer, self.cache_row, self.position, key, value)
        return super().attend(layer, query, key, value, scale=scale)


class Decode:
    """One new id for each of the first `len(position)` cache rows."""

    def __init__(self, position: Tensor, *, cache: Cache, length: int) -> None:
        self.cache, self.position, self.length = cache, position, length
        self.row = torch.arange(len(position), device=position.device)
        columns = torch.arange(length, device=position.device)
        self.mask = (columns <= position[:, None])[:, None, None]  # [N, 1, 1, S]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        self.cache.write(layer, self.row, self.position, key, value)
        num_heads, num_rows, size = query.shape
        # The query heads that share a key-value head stand where queries of a longer row would.
        q = query.transpose(0, 1).reshape(num_rows, key.shape[0], -1, size)  # [N, K, H / K, D]
        k = self.cache.keys[layer][:num_rows, :, : self.length]
        v = self.cache.values[layer][:num_rows, :, : self.length]
        out = scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=scale)
        return out.reshape(num_rows, num_heads, size)
