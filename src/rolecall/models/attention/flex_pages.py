"""Computes attention of rows with one new token over their pages by FlexAttention, for GPUs.

Nothing is gathered: a row's table is its list of blocks. All shapes are known beforehand and
nothing waits for the device, so that a step can be recorded.

Legend: R = rows, P = pages of a table, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from rolecall.models.attention.flex import BLOCK, compiled, ruled
from rolecall.models.attention.kv_cache import Cache
from rolecall.models.attention.score_rule import ScoreRule
from rolecall.models.cpu.kernels import PAGE


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
            place = place_R[row, position // PAGE]
            return (place >= 0) & (place * PAGE + position % PAGE <= starts[row])

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
        """query [H, R, D], key and value [K, R, D] -> [R, H, D].

        The kernel for short queries takes 1, 2, 4 ... query heads of a key head; the one for all
        others no pages as small as ours. So heads are added where there are 3, or 7.
        """
        num_kv, groups = len(key), len(query) // len(key)
        more = (1 << (groups - 1).bit_length()) - groups
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, self.slot, key.transpose(0, 1))
        values.index_copy_(0, self.slot, value.transpose(0, 1))
        grouped = pad(query.transpose(0, 1).unflatten(1, (num_kv, groups)), (0, 0, 0, more))
        rule = None if rule is None else rule.within(self.longest)
        compiles = query.device.type == "cuda"
        width = self.mask.kv_indices.shape[-1]
        fixed = ("decoding", *keys.shape, width, groups + more, keys.dtype)
        given = (
            grouped.flatten(1, 2)[:, :, None], keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
        )  # fmt: skip
        out: Tensor
        if rule is None:
            flex: Any = compiled(*fixed) if compiles else flex_attention
            out = flex(*given, block_mask=self.mask, scale=scale, enable_gqa=True)
        else:
            rule, mask = self._padded(rule, num_kv, groups, more), self._within(rule.window)
            out = ruled(*given, mask=mask, scale=scale, rule=rule, fixed=fixed, compiles=compiles)
        return out[:, :, 0].unflatten(1, (num_kv, -1))[:, :, :groups].flatten(1, 2)

    @staticmethod
    def _padded(rule: ScoreRule, num_kv: int, groups: int, more: int) -> ScoreRule:
        """With sinks for the heads that are added too."""
        if rule.sinks is None:
            return rule
        sinks = pad(rule.sinks.unflatten(0, (num_kv, groups)), (0, more)).flatten()
        return replace(rule, sinks=sinks)
