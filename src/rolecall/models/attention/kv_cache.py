"""Holds the keys and values of rows in flight in pages, which later tokens of the rows read.

A row's table names its pages, so rows that begin alike read the same ones. On a CPU with float32
numba's loops walk the pages; elsewhere they are gathered for PyTorch's attention.

Legend: N = new tokens, R = rows, P = most pages of a row, H / K = query / key-value heads, D = head
size, L = most new tokens of a row, S = positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from mmap import mmap

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rolecall.models.attention.score_rule import ScoreRule, attend_densely
from rolecall.models.cpu import kernels, paged_attention
from rolecall.models.cpu.kernels import PAGE, flat, runs_on_numba


class Cache:
    """Holds each layer's keys and values.

    With numba the keys are [pages, K, D, PAGE] and the values [pages, K, PAGE, D]. Elsewhere both
    are [positions, K, D], with one page more, `spare`, that no row is given.
    """

    def __init__(self, *, layers: int, pages: int, heads: int, size: int, like: Tensor) -> None:
        self.runs_on_numba = runs_on_numba(like) and size % 8 == 0
        self.num_kv_heads, self.head_size = heads, size
        self.spare = pages
        keys: tuple[int, ...] = ((pages + 1) * PAGE, heads, size)
        values = keys
        if self.runs_on_numba:
            keys, values = (pages, heads, size, PAGE), (pages, heads, PAGE, size)
        self.keys = [_zeros(keys, like) for _ in range(layers)]
        self.values = [_zeros(values, like) for _ in range(layers)]

    @cached_property
    def arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of each layer, for numba."""
        return list(zip(map(flat, self.keys), map(flat, self.values), strict=True))

    @cached_property
    def addresses(self) -> np.ndarray:
        """[layers, 2] where these begin."""
        return np.array([[array.ctypes.data for array in both] for both in self.arrays], np.uintp)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros; on a CPU as memory that costs nothing until it is written.

    It comes from the kernel: an allocator that keeps what was freed would fill it with zeros.
    """
    if like.device.type == "cpu":
        memory = mmap(-1, math.prod(shape) * like.element_size())
        return torch.frombuffer(memory, dtype=torch.uint8).view(like.dtype).view(shape)
    return like.new_zeros(shape)


def _numbers(rule: ScoreRule | None) -> tuple[int, np.float32, np.ndarray]:
    """Return a rule as numba's loop takes it: window, softcap or 0, sinks [H] or none."""
    if rule is None:
        return paged_attention.NO_RULE
    window = paged_attention.UNLIMITED if rule.window is None else rule.window
    sinks = np.zeros(0, np.float32) if rule.sinks is None else flat(rule.sinks.contiguous())
    return window, np.float32(rule.softcap or 0.0), sinks


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the rows, padded to the longest of them."""

    slots: Tensor  # [R, S] where their positions stand in the cache
    index: Tensor  # [R, L] of their new tokens among all
    real: Tensor  # [R, L] what is not padding
    mask: Tensor  # [R, 1, L, S] which positions each token sees
    last: Tensor  # [R, L, 1] the position of each token

    def within(self, window: int | None) -> Tensor:
        """Return the mask with a window of positions."""
        if window is None:
            return self.mask
        column_S = torch.arange(self.mask.shape[-1], device=self.mask.device)
        return self.mask & (column_S > self.last - window)[:, None]


class Paged:
    """New tokens of rows, any number of each; they see what stands before them in their row.

    table [R, P]: the pages of each row; starts [R]: how many positions of it are filled already;
    counts [R]: its new tokens, one if not given.
    """

    def __init__(
        self, table: Tensor, starts: Tensor, counts: Tensor | None = None, *, cache: Cache
    ) -> None:
        self.cache, self.table, self.starts = cache, table, starts
        self.counts = torch.ones_like(starts) if counts is None else counts
        # [N] of each new token its row, its position in the row, and its place in the cache.
        if starts.device.type == "cpu":
            self.row, self.position, self.slot = self._locate_in_loop()
        else:
            self.row, self.position, self.slot = self._locate()

    def _locate(self) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(len(self.starts), device=self.starts.device)
        row = rows.repeat_interleave(self.counts)
        index = torch.arange(len(row), device=row.device)
        position = index - (self.first - self.starts)[row]
        page = self.table[row, position // PAGE].long()
        return row, position, page * PAGE + position % PAGE

    def _locate_in_loop(self) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same on a CPU, where a dozen tensor operations cost more than this loop."""
        starts, counts = self.starts.numpy(), self.counts.numpy()
        table = np.ascontiguousarray(self.table.numpy(), np.int32)
        row, position, slot = (np.empty(counts.sum(), np.int64) for _ in range(3))
        paged_attention.locate(
            table.reshape(-1), table.shape[1], np.ascontiguousarray(starts),
            np.ascontiguousarray(counts), row, position, slot,
        )  # fmt: skip
        return torch.from_numpy(row), torch.from_numpy(position), torch.from_numpy(slot)

    @cached_property
    def first(self) -> Tensor:
        """[R] the index of each row's first new token."""
        return self.counts.cumsum(0) - self.counts

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
        query, key, value = (x.transpose(0, 1).contiguous() for x in (query, key, value))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        number, size = self.cache.num_kv_heads, self.cache.head_size
        sizes = {query.shape[2], key.shape[2], value.shape[2], size}
        if len(sizes) > 1 or not key.shape[1] == value.shape[1] == number:
            shapes = [tuple(x.shape[1:]) for x in (query, key, value)]
            raise ValueError(
                f"queries, keys and values have {shapes} heads and numbers; the cache has "
                f"{number} heads of {size}"
            )
        rule = None if rule is None else rule.within(self.longest)
        if self.cache.runs_on_numba:
            return self._walk(keys, values, query, key, value, scale, rule)
        keys[self.slot], values[self.slot] = key, value
        out = torch.empty_like(query)
        for rows in self._parts:
            k, v = (x[rows.slots].transpose(1, 2) for x in (keys, values))  # [R, K, S, D]
            q, mask = query[rows.index].transpose(1, 2), rows.mask
            if rule is not None:
                mask = rows.within(rule.window)
            if rule is None or rule.is_window:
                mixed = scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, scale=scale,
                    enable_gqa=query.shape[1] != key.shape[1],
                )  # fmt: skip
            else:
                mixed = attend_densely(q, k, v, seen=mask, scale=scale, rule=rule)
            out[rows.index[rows.real]] = mixed.transpose(1, 2)[rows.real]
        return out

    def _walk(
        self,
        keys: Tensor,
        values: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        rule: ScoreRule | None,
    ) -> Tensor:
        (num_heads, size), num_kv = query.shape[1:], key.shape[1]
        k, v, out = flat(keys), flat(values), torch.empty_like(query)
        kernels.use_threads()
        kernels.write(flat(key), flat(value), k, v, self.slot.numpy(), num_kv, size)
        paged_attention.attend(
            flat(query), k, v, *self.places, num_heads, num_kv, size, np.float32(scale),
            *_numbers(rule), flat(out),
        )  # fmt: skip
        return out

    @cached_property
    def longest(self) -> int:
        """The most positions that any of these rows has now."""
        return int(self.position.max()) + 1

    @cached_property
    def places(self) -> tuple[np.ndarray, ...]:
        """Return the tables that numba's loops read.

        They are the table, each token's row and position, an order of the tokens in which those
        whose rows begin alike stand together, and their groups.
        """
        table, row, position = self.table.numpy(), self.row.numpy(), self.position.numpy()
        whole = np.ascontiguousarray(table)
        lines = whole.view(f"V{whole.shape[1] * whole.itemsize}")[:, 0]  # compared as bytes
        rank = np.empty(len(lines), np.int64)
        rank[lines.argsort(kind="stable")] = np.arange(len(lines))
        order = rank[row].argsort(kind="stable")
        return table, row, position, order, *paged_attention.groups(table, row, position, order)

    @cached_property
    def _parts(self) -> list[_Part]:
        """Rows with one new token, and the others: so no decoding row is padded to a prompt."""
        single = self.counts == 1
        return [self._part(rows) for rows in (single, ~single) if bool(rows.any())]

    def _part(self, rows: Tensor) -> _Part:
        starts, counts = self.starts[rows], self.counts[rows]
        column_L = torch.arange(int(counts.max()), device=counts.device)
        real = column_L < counts[:, None]
        index = (self.first[rows][:, None] + column_L).clamp(max=len(self.row) - 1)
        pages = -(-int((starts + counts).max()) // PAGE)
        column_S = torch.arange(pages * PAGE, device=counts.device)
        last = (starts[:, None] + column_L)[..., None]
        table = self.table[rows, :pages].long()
        slots = (table[..., None] * PAGE + column_S[:PAGE]).flatten(1)
        return _Part(slots, index, real, (column_S <= last)[:, None], last)
