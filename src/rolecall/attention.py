"""Rows of ids lie one after another in one flat row; each layer's queries go in, outputs out.

transformers hands query, key and value of all N ids to the attention function registered here,
which asks the `layout` that the caller passed to the model. So any decoder that supports the
attention interface can train on packed rows and decode from our cache, without a class of ours.

Legend: N = ids in the flat row, R = rows, L = longest row, H / K = query / key-value heads,
D = head size, S = cache positions.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

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
    """Whole prompts, whose keys and values are kept in the cache from row `first` on."""

    def __init__(self, lengths: list[int], *, cache: Cache, first: int) -> None:
        super().__init__(lengths, device=cache.keys[0].device)
        self.cache = cache
        self.cache_row = self.row + first

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
