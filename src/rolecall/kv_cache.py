"""Keys and values of rows in flight: written by every layer, read by rows that go on.

Legend: N = ids in the flat row, R = rows, L = most new ids of a row, H / K = query / key-value
heads, D = head size, S = cache positions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rolecall.attention import Rows


class Cache:
    """Of each layer the keys [rows, K, D, S] and the values [rows, K, S, D].

    Keys stand transposed: a decode step multiplies few queries with many keys, and a matrix product
    is several times faster along contiguous positions (measured on a CPU).
    """

    def __init__(
        self, *, layers: int, rows: int, heads: int, length: int, size: int, like: Tensor
    ) -> None:
        self.keys = [_zeros((rows, heads, size, length), like) for _ in range(layers)]
        self.values = [_zeros((rows, heads, length, size), like) for _ in range(layers)]
        self.rows, self.length = rows, length

    def write(self, layer: int, row: Tensor, position: Tensor, key: Tensor, value: Tensor) -> None:
        """key and value [K, N, D] go to (row [N], position [N])."""
        self.keys[layer][row, :, :, position] = key.transpose(0, 1)
        self.values[layer][row, :, position] = value.transpose(0, 1)

    def copy(self, source: list[int], target: list[int], *, length: int) -> None:
        """The first `length` positions of rows go to other rows, all at the same moment."""
        for store in self.keys:
            store[target, :, :, :length] = store[source, :, :, :length]
        for store in self.values:
            store[target, :, :length] = store[source, :, :length]

    def resized(self, *, rows: int, length: int) -> Cache:
        """A cache of another size that holds the same in the rows and positions of both."""
        first = self.values[0]
        cache = Cache(
            layers=len(self.keys), rows=rows, heads=first.shape[1], length=length,
            size=first.shape[3], like=first,
        )  # fmt: skip
        r, s = min(self.rows, rows), min(self.length, length)
        for old, new in zip(self.keys, cache.keys, strict=True):
            new[:r, :, :, :s] = old[:r, :, :, :s]
        for old, new in zip(self.values, cache.values, strict=True):
            new[:r, :, :s] = old[:r, :, :s]
        return cache


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros; on a CPU as pages that cost nothing until they are written."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))
    return like.new_zeros(shape)


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


class Continue(Rows):
    """New ids of rows whose first `starts` positions are in the cache already."""

    def __init__(
        self, starts: list[int], lengths: list[int], *, cache: Cache, rows: list[int]
    ) -> None:
        super().__init__(lengths, device=cache.keys[0].device)
        self.cache = cache
        self.rows = torch.tensor(rows, device=self.row.device)
        self.cache_row = self.rows[self.row]
        start_R = torch.tensor(starts, device=self.row.device)
        self.position = self.position + start_R[self.row]
        self.size = max(a + b for a, b in zip(starts, lengths, strict=True))
        column_S = torch.arange(self.size, device=self.row.device)
        place_L = torch.arange(max(lengths), device=self.row.device)
        last_R_L = start_R[:, None] + place_L
        self.mask = (column_S <= last_R_L[..., None])[:, None]  # [R, 1, L, S]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        self.cache.write(layer, self.cache_row, self.position, key, value)
        q = query[:, self.index].transpose(0, 1)  # [R, H, L, D]
        k = self.cache.keys[layer][self.rows, :, :, : self.size].transpose(2, 3)
        v = self.cache.values[layer][self.rows, :, : self.size]
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
        )
        return out.transpose(1, 2)[self.real]  # [N, H, D]


class Decode:
    """One new id for each of the first `len(position)` cache rows."""

    def __init__(self, position: Tensor, *, cache: Cache, length: int) -> None:
        self.cache, self.position, self.length = cache, position, length
        self.row = torch.arange(len(position), device=position.device)
        column_S = torch.arange(length, device=position.device)
        hidden = column_S > position[:, None]
        like = cache.keys[0]
        self.mask = like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        self.cache.write(layer, self.row, self.position, key, value)
        num_heads, num_rows, size = query.shape
        pairs = num_rows * key.shape[0]
        # The query heads that share a key-value head stand where queries of a longer row would.
        q = (query * scale).transpose(0, 1).reshape(pairs, -1, size)  # [N K, H / K, D]
        k = self.cache.keys[layer][:num_rows, :, :, : self.length].reshape(pairs, size, -1)
        v = self.cache.values[layer][:num_rows, :, : self.length].reshape(pairs, -1, size)
        scores = torch.bmm(q, k).view(num_rows, key.shape[0], -1, self.length).add_(self.mask)
        weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        return torch.bmm(weights.view(pairs, -1, self.length), v).view(num_rows, num_heads, size)
