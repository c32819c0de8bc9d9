"""Rows of all policies of one model in, one more id for each per step out: prefill and decode.

Policies that train adapters of one base share its rows, its cache and its forward passes.

Legend: row i of the cache belongs to active[i]; when rows end, the last ones fill the holes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rolecall.attention import Cache, Decode, Layout, Prefill
from rolecall.engines.base import Request
from rolecall.engines.rows import Row, rows_of
from rolecall.engines.sampling import draw
from rolecall.models import LanguageModel, mixed_logits

PREFILL_IDS = 4096  # most prompt ids in one forward pass
CACHE_STEP = 64  # cache lengths are multiples of it, so that a cache is seldom grown


class Decoder:
    """The rows of the policies of one model."""

    def __init__(
        self, policies: dict[str, LanguageModel], *, max_rows: int, cache_bytes: int
    ) -> None:
        self.policies = policies
        self.model = next(iter(policies.values()))  # all of them have its sizes and its tokenizer
        self.versions = dict.fromkeys(policies, 0)
        self.stale: set[str] = set()  # policies published since their rows were last read
        self.waiting: list[Row] = []
        self.active: list[Row] = []
        self.cache: Cache | None = None
        self.max_rows = max_rows
        number = next(self.model.model.parameters())
        per_id = 2 * self.model.num_layers * self.model.num_kv_heads * self.model.head_size
        self.max_ids = cache_bytes // (per_id * number.element_size())

    def add(self, request: Request) -> list[Row]:
        """Let a request wait for its turn. Raises ValueError if the prompt leaves no room."""
        longest = min(self.model.max_length, self.max_ids)
        rows = rows_of(request, longest=longest, ends=self.model.end_ids)
        self.waiting += rows
        return rows

    def publish(self, policy: str, version: int) -> None:
        """The policy's weights have changed: its rows go on with what the new ones would see."""
        self.versions[policy] = version
        self.stale.add(policy)

    def step(self) -> None:
        """Prefill what has come and fits, give every other row one more id, drop what ended."""
        self._drop_over()
        if self.stale:
            self._refresh()
        if self.waiting and len(self.active) < self.max_rows:
            self._admit()
            self._drop_over()
        if self.active:
            self._decode()
            self._drop_over()

    def fail(self, error: Exception) -> None:
        for row in (*self.waiting, *self.active):
            if not row.done.done():
                row.done.set_exception(error)
        self.waiting, self.active = [], []

    def room(self, row: Row) -> int:
        """Cache positions a row may come to need."""
        need = len(row.request.prompt) + row.limit
        return -(-need // CACHE_STEP) * CACHE_STEP

    def _refresh(self) -> None:
        """Read the rows in flight of published policies again: keys and values of new weights."""
        places = [i for i, row in enumerate(self.active) if row.request.policy in self.stale]
        for chunk in _chunks([self.active[i] for i in places]):
            self._read(chunk, places=places[: len(chunk)])
            del places[: len(chunk)]
        self.stale = set()

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: (row.request.order, row.request.policy))
        length = max((self.room(row) for row in self.active), default=0)
        fresh: list[Row] = []
        for row in self.waiting:
            length = max(length, self.room(row))
            rows = len(self.active) + len(fresh) + 1
            if rows > self.max_rows or (rows > 1 and rows * length > self.max_ids):
                break
            fresh.append(row)
        if not fresh:
            return
        self._reserve(
            rows=len(self.active) + len(fresh),
            length=max(self.room(row) for row in (*self.active, *fresh)),
        )
        for chunk in _chunks(fresh):
            first = len(self.active)
            logits = self._read(chunk, places=list(range(first, first + len(chunk))))
            self._record(chunk, logits)
            self.active += chunk
            del self.waiting[: len(chunk)]  # only now: a failure must find them

    def _reserve(self, *, rows: int, length: int) -> None:
        model, cache = self.model, self.cache
        if cache is None:
            like = next(model.model.parameters())
            self.cache = Cache(
                layers=model.num_layers, rows=rows, heads=model.num_kv_heads, length=length,
                size=model.head_size, like=like.detach(),
            )  # fmt: skip
        elif rows > cache.rows or length > cache.length:
            wider, longer = max(rows, cache.rows), max(length, cache.length)
            if wider * longer > self.max_ids:  # many short rows were held before, or few long ones
                wider, longer = rows, length
            self.cache = cache.resized(rows=wider, length=longer, held=len(self.active))

    def _read(self, rows: list[Row], *, places: list[int]) -> Tensor:
        """Fill the cache rows `places` with what the rows have read; logits after it [rows, V]."""
        assert self.cache is not None
        device, read = self.model.device, [row.read for row in rows]
        counts = [len(ids) for ids in read]
        layout = Prefill(counts, cache=self.cache, rows=places)
        tokens = torch.from_numpy(np.concatenate(read)).long().to(device)
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        return self._logits(rows, counts, tokens, layout.position, layout=layout, keep=last)

    def _decode(self) -> None:
        assert self.cache is not None
        device, rows = self.model.device, self.active
        tokens = torch.tensor([row.tokens[-1] for row in rows], device=device)
        position = torch.tensor([row.length - 1 for row in rows], device=device)
        longest = -(-max(row.length for row in rows) // CACHE_STEP) * CACHE_STEP
        layout = Decode(position, cache=self.cache, length=min(longest, self.cache.length))
        keep = torch.arange(len(rows), device=device)
        counts = [1] * len(rows)
        logits = self._logits(rows, counts, tokens, position, layout=layout, keep=keep)
        self._record(rows, logits)

    def _logits(
        self,
        rows: list[Row],
        counts: list[int],
        tokens: Tensor,
        positions: Tensor,
        *,
        layout: Layout,
        keep: Tensor,
    ) -> Tensor:
        owners = [self.policies[row.request.policy] for row in rows]
        pairs = list(zip(owners, counts, strict=True))
        return mixed_logits(pairs, tokens, positions, layout=layout, keep=keep)

    def _record(self, rows: list[Row], logits: Tensor) -> None:
        uniforms = torch.tensor(
            [row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64
        )
        tokens, logprobs = draw(
            logits, uniforms.to(logits.device), [row.request.sampling for row in rows]
        )
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            version = self.versions[row.request.policy]
            row.append(token, logprob, version=version, tokenizer=self.model.tokenizer)

    def _drop_over(self) -> None:
        keep = [i for i, row in enumerate(self.active) if not row.over]
        if len(keep) == len(self.active):
            return
        assert self.cache is not None
        for row in self.active:
            if row.finish:
                row.complete()
        holes = sorted(set(range(len(keep))) - set(keep))
        movers = [i for i in keep if i >= len(keep)]
        if movers:
            self.cache.move(torch.tensor(movers), torch.tensor(holes))
        rows = self.active
        self.active = [rows[i] for i in range(len(keep))]
        for hole, mover in zip(holes, movers, strict=True):
            self.active[hole] = rows[mover]


def _chunks(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows in order, as many at a time as one forward pass should read."""
    chunk: list[Row] = []
    ids = 0
    for row in rows:
        if chunk and ids + row.length > PREFILL_IDS:
            yield chunk
            chunk, ids = [], 0
        chunk.append(row)
        ids += row.length
    if chunk:
        yield chunk
