"""One policy's rows in, one more id for each per step out: prefill, decode, and the cache rows.

Legend: row i of the cache belongs to active[i]; when rows end, the last ones fill the holes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rolecall.attention import Cache, Decode, Prefill
from rolecall.engines.base import Completion, Request
from rolecall.engines.sampling import draw
from rolecall.models import LanguageModel
from rolecall.seeds import seed_of

PREFILL_IDS = 4096  # most prompt ids in one forward pass
CACHE_STEP = 64  # cache lengths are multiples of it, so that a cache is seldom grown


@dataclass(slots=True)
class Row:
    """One completion that is being sampled."""

    request: Request
    done: asyncio.Future[Completion]
    uniforms: list[float]  # [limit] the draws, fixed before the first id is sampled
    limit: int  # most ids it may have
    ends: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ""

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)


class Decoder:
    """The rows of one policy: cache row i belongs to active[i]."""

    def __init__(self, model: LanguageModel, *, max_rows: int, cache_bytes: int) -> None:
        self.model = model
        self.version = 0
        self.waiting: list[Row] = []
        self.active: list[Row] = []
        self.cache: Cache | None = None
        self.max_rows = max_rows
        number = next(model.model.parameters())
        per_id = 2 * model.num_layers * model.num_kv_heads * model.head_size
        self.max_ids = cache_bytes // (per_id * number.element_size())

    def row(self, request: Request, *, ordinal: int) -> Row:
        """A row for one completion. Raises ValueError if the prompt leaves no room."""
        sampling = request.sampling
        longest = min(self.model.max_length, self.max_ids)
        room = longest - len(request.prompt)
        if room < 1:
            raise ValueError(
                f"the prompt of {request.id} has {len(request.prompt)} ids; policy "
                f"{request.policy!r} has room for {longest - 1} (model {self.model.max_length}, "
                f"cache {self.max_ids})"
            )
        limit = min(sampling.max_tokens, room)
        seed = request.seed if request.n == 1 else seed_of(request.seed, ordinal)
        return Row(
            request=request,
            done=asyncio.get_running_loop().create_future(),
            uniforms=np.random.default_rng(seed).random(limit).tolist(),
            limit=limit,
            ends=frozenset((*self.model.end_ids, *sampling.stop_ids)),
        )

    def step(self) -> None:
        """Prefill what has come and fits, give every other row one more id, drop what ended."""
        if self.waiting and len(self.active) < self.max_rows:
            self._admit()
            self._drop_ended()
        if self.active:
            self._decode()
            self._drop_ended()

    def fail(self, error: Exception) -> None:
        for row in (*self.waiting, *self.active):
            if not row.done.done():
                row.done.set_exception(error)
        self.waiting, self.active = [], []

    def room(self, row: Row) -> int:
        """Cache positions a row may come to need."""
        need = len(row.request.prompt) + row.limit
        return -(-need // CACHE_STEP) * CACHE_STEP

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: row.request.order)
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
        while fresh:
            chunk = [fresh.pop(0)]
            while fresh and sum(r.length for r in (*chunk, fresh[0])) <= PREFILL_IDS:
                chunk.append(fresh.pop(0))
            self._prefill(chunk)
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

    def _prefill(self, rows: list[Row]) -> None:
        assert self.cache is not None
        device = self.model.device
        lengths = [len(row.request.prompt) for row in rows]
        layout = Prefill(lengths, cache=self.cache, first=len(self.active))
        tokens = torch.from_numpy(np.concatenate([row.request.prompt for row in rows])).long()
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits = self.model.logits(tokens.to(device), layout.position, layout=layout, keep=last)
        self._record(rows, logits)
        self.active += rows

    def _decode(self) -> None:
        assert self.cache is not None
        device, rows = self.model.device, self.active
        tokens = torch.tensor([row.tokens[-1] for row in rows], device=device)
        position = torch.tensor([row.length - 1 for row in rows], device=device)
        longest = -(-max(row.length for row in rows) // CACHE_STEP) * CACHE_STEP
        layout = Decode(position, cache=self.cache, length=min(longest, self.cache.length))
        keep = torch.arange(len(rows), device=device)
        logits = self.model.logits(tokens, position, layout=layout, keep=keep)
        self._record(rows, logits)

    def _record(self, rows: list[Row], logits: Tensor) -> None:
        uniforms = torch.tensor(
            [row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64
        )
        tokens, logprobs = draw(
            logits, uniforms.to(logits.device), [row.request.sampling for row in rows]
        )
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            if token in row.ends or self._stopped(row):
                row.finish = "stop"
            elif len(row.tokens) >= row.limit:
                row.finish = "length"

    def _stopped(self, row: Row) -> bool:
        stops = row.request.sampling.stop
        if not stops:
            return False
        # An id holds at least one byte of text.
        tail = row.tokens[-(max(len(stop.encode()) for stop in stops) + 4) :]
        text = self.model.tokenizer.decode(tail)
        return any(stop in text for stop in stops)

    def _drop_ended(self) -> None:
        keep = [i for i, row in enumerate(self.active) if not (row.finish or row.done.done())]
        if len(keep) == len(self.active):
            return
        assert self.cache is not None
        for row in self.active:
            if row.finish and not row.done.done():
                row.done.set_result(_completion(row))
        holes = sorted(set(range(len(keep))) - set(keep))
        movers = [i for i in keep if i >= len(keep)]
        if movers:
            self.cache.move(torch.tensor(movers), torch.tensor(holes))
        rows = self.active
        self.active = [rows[i] for i in range(len(keep))]
        for hole, mover in zip(holes, movers, strict=True):
            self.active[hole] = rows[mover]


def _completion(row: Row) -> Completion:
    return Completion(
        tokens=np.array(row.tokens, dtype=np.int32),
        logprobs=np.array(row.logprobs, dtype=np.float32),
        versions=np.array(row.versions, dtype=np.int32),
        finish=row.finish,
    )
