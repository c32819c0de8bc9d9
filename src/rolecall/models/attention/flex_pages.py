"""Computes attention of rows with one new token over their pages by FlexAttention, for GPUs.

Nothing is gathered: a row's table is its list of blocks. All shapes are known beforehand and
nothing waits for the device, so that a step can be recorded.

Legend: R = rows, P = pages of a table, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from rolecall.models.attention.flex import (
    BLOCK,
    attend_with_rule,
    compile_attention,
    draw_like,
    spread,
)
from rolecall.models.attention.flex_proof import attend_checked
from rolecall.models.attention.kv_cache import Cache
from rolecall.models.attention.score_rule import ScoreRule, attend_densely
from rolecall.models.cpu.kernels import PAGE

GATHERED = 2**28  # bytes of keys that are gathered at once, where FlexAttention does not hold
TRIED_WINDOW = 9


class FlexPages:
    """table [R, P]: each row's pages, then anything; starts [R]: where its new token goes."""

    def __init__(self, table: Tensor, starts: Tensor, *, cache: Cache) -> None:
        assert not cache.runs_on_numba, "these pages are laid out for numba"
        self.cache, self.position = cache, starts
        rows, width = table.shape
        num_pages = cache.spare + 1
        place_P = torch.arange(width, device=table.device)
        used_R = starts // PAGE + 1
        page = table.gather(1, (starts // PAGE)[:, None])[:, 0].long()
        self.slot = page * PAGE + starts % PAGE
        # Of each page its place in the row, or -1; what is behind a row's pages goes to the end.
        place_R = table.new_full((rows, num_pages + 1), -1)
        listed = torch.where(place_P < used_R[:, None], table, num_pages).long()
        place_R.scatter_(1, listed, place_P.to(table.dtype).expand(rows, -1))

        self.table, self.used, self.starts, self.place = table, used_R, starts, place_R
        self.longest = width * PAGE
        self._masks: dict[int | None, BlockMask] = {}
        self.mask = self._within(None)

    def _within(self, window: int | None) -> BlockMask:
        """Made once in a step, for all layers of one window."""
        if window in self._masks:
            return self._masks[window]
        place_R, starts = self.place, self.starts

        def seen(row: Tensor, head: Tensor, query: Tensor, position: Tensor) -> Tensor:
            page = place_R[row, position // PAGE]
            return (page >= 0) & (page * PAGE + position % PAGE <= starts[row])

        def near(row: Tensor, head: Tensor, query: Tensor, position: Tensor) -> Tensor:
            assert window is not None
            at = place_R[row, position // PAGE] * PAGE + position % PAGE
            return seen(row, head, query, position) & (at > starts[row] - window)

        mask = self._masks[window] = BlockMask(
            (1, (self.cache.spare + 1) * PAGE),
            self.used[:, None, None].int(),
            self.table[:, None, None].int(),
            full_kv_num_blocks=None, full_kv_indices=None, q_num_blocks=None, q_indices=None,
            full_q_num_blocks=None, full_q_indices=None,
            BLOCK_SIZE=(BLOCK, PAGE),
            mask_mod=seen if window is None else near,
        )  # fmt: skip
        return mask

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
        """Attend with query [H, R, D], key and value [K, R, D] -> [R, H, D]."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, self.slot, key.transpose(0, 1))
        values.index_copy_(0, self.slot, value.transpose(0, 1))
        rule = None if rule is None else rule.within(self.longest)
        if query.device.type == "cpu":
            return self._by_flex(query, keys, values, scale=scale, rule=rule, compiles=False)
        asks = rule and (rule.window is not None, rule.softcap, rule.sinks is not None)
        kind = (len(query), *keys.shape[1:], keys.dtype, asks)
        return attend_checked(
            "decoding", query.device, kind=kind,
            tried=lambda: _tried(query, keys, scale=scale, rule=rule),
            flex=lambda: self._by_flex(query, keys, values, scale=scale, rule=rule, compiles=True),
            plain=lambda: self._plainly(query, keys, values, scale=scale, rule=rule or ScoreRule()),
        )  # fmt: skip

    def _by_flex(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, rule: ScoreRule | None,
        compiles: bool,
    ) -> Tensor:  # fmt: skip
        """Attend by flex attention, with query heads added to groups of 3, 5, 6, 7 ...

        The kernel for short queries takes 1, 2, 4 ... query heads of a key head; the one for all
        others takes no pages as small as ours.
        """
        num_kv = keys.shape[1]
        groups = len(query) // num_kv
        more = (1 << (groups - 1).bit_length()) - groups
        grouped = pad(query.transpose(0, 1).unflatten(1, (num_kv, groups)), (0, 0, 0, more))
        width = self.mask.kv_indices.shape[-1]
        fixed = ("decoding", *keys.shape, width, groups + more, keys.dtype)
        inputs = (
            grouped.flatten(1, 2)[:, :, None], keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
        )  # fmt: skip
        out: Tensor
        if rule is None:
            flex: Callable[..., Tensor] = compile_attention(*fixed) if compiles else flex_attention
            out = flex(*inputs, block_mask=self.mask, scale=scale, enable_gqa=True)
        else:
            rule, mask = self._padded(rule, num_kv, groups, more), self._within(rule.window)
            out = attend_with_rule(
                *inputs, mask=mask, scale=scale, rule=rule, fixed=fixed, compiles=compiles
            )
        return out[:, :, 0].unflatten(1, (num_kv, -1))[:, :, :groups].flatten(1, 2)

    def _plainly(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, rule: ScoreRule
    ) -> Tensor:
        """Gather all positions of a table, of some rows at a time, whatever is filled of them: this
        waits for nothing and can be recorded.
        """
        place_S = torch.arange(self.longest, device=query.device)
        slots = self.table.clamp(0, self.cache.spare).long()[:, :, None] * PAGE + place_S[:PAGE]
        slots = slots.flatten(1)
        seen = place_S <= self.starts[:, None]
        if rule.window is not None:
            seen = seen & (place_S > self.starts[:, None] - rule.window)
        exact = torch.promote_types(query.dtype, torch.float32)
        most = max(1, GATHERED // (self.longest * keys[0].numel() * exact.itemsize))
        parts = []
        for rows in _slices(len(slots), most):
            k, v = (x[slots[rows]].transpose(1, 2).to(exact) for x in (keys, values))
            q = query[:, rows].transpose(0, 1)[:, :, None].to(exact)
            seen_of_q = seen[rows, None, None]
            parts.append(attend_densely(q, k, v, seen=seen_of_q, scale=scale, rule=rule))
        return torch.cat(parts)[:, :, 0].to(query.dtype)

    @staticmethod
    def _padded(rule: ScoreRule, num_kv: int, groups: int, more: int) -> ScoreRule:
        """Return the rule with sinks for the added heads too."""
        if rule.sinks is None:
            return rule
        sinks = pad(rule.sinks.unflatten(0, (num_kv, groups)), (0, more)).flatten()
        return replace(rule, sinks=sinks)


def _slices(number: int, most: int) -> list[slice]:
    return [slice(start, min(number, start + most)) for start in range(0, number, most)]


@torch.no_grad()
def _tried(
    query: Tensor, keys: Tensor, *, scale: float, rule: ScoreRule | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what FlexAttention and the plain way compute for three rows, with heads like these."""
    num_kv, size = keys.shape[1:]
    cache = Cache(layers=1, pages=9, heads=num_kv, size=size, like=keys)
    stored = [draw_like(len(cache.keys[0]), num_kv, size, like=keys, seed=seed) for seed in (0, 1)]
    table = torch.tensor([[2, 0, 5, 9], [1, 3, 9, 9], [2, 7, 8, 4]], dtype=torch.int32)
    starts = torch.tensor([2 * PAGE + 3, 5, 4 * PAGE - 1])
    layout = FlexPages(table.to(query.device), starts.to(query.device), cache=cache)
    queries = draw_like(len(query), len(table), size, like=query, seed=2) * spread(
        scale, size, rule
    )
    if rule is not None:
        rule = replace(rule, window=rule.window and min(rule.window, TRIED_WINDOW))
    actual = layout._by_flex(queries, *stored, scale=scale, rule=rule, compiles=True)
    yield actual, layout._plainly(queries, *stored, scale=scale, rule=rule or ScoreRule())
