"""Requests of running episodes in, sampled ids out: batches decoded over the trained weights.

`generate` consumes one request and waits; the pump takes all that have come, prefills them, and
gives every running row one more id per step; the end of a row unblocks its caller. In
deterministic mode the pump steps only while every live coroutine waits for it, and rows stand in
the order of (task, attempt, path), so a batch holds the same rows in every run.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rolecall import scope
from rolecall.attention import Cache, Decode, Prefill, Rows
from rolecall.core import Floats, Ids
from rolecall.engines.base import Completion, Request
from rolecall.engines.sampling import draw
from rolecall.models import LanguageModel
from rolecall.seeds import seed_of

PREFILL_IDS = 4096  # most prompt ids in one forward pass
CACHE_STEP = 64  # cache lengths are multiples of it, so that a cache is seldom grown


@dataclass(slots=True)
class _Row:
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


class _Decoder:
    """The rows of one policy: cache row i belongs to active[i]."""

    def __init__(self, model: LanguageModel, *, max_rows: int, cache_bytes: int) -> None:
        self.model = model
        self.version = 0
        self.waiting: list[_Row] = []
        self.active: list[_Row] = []
        self.cache: Cache | None = None
        self.max_rows = max_rows
        number = next(model.model.parameters())
        per_id = 2 * model.num_layers * model.num_kv_heads * model.head_size
        self.max_ids = cache_bytes // (per_id * number.element_size())

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

    def room(self, row: _Row) -> int:
        """Cache positions a row may come to need."""
        need = len(row.request.prompt) + row.limit
        return -(-need // CACHE_STEP) * CACHE_STEP

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: row.request.order)
        length = max((self.room(row) for row in self.active), default=0)
        fresh: list[_Row] = []
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
            self.cache = cache.grown(rows=max(rows, cache.rows), length=max(length, cache.length))

    def _prefill(self, rows: list[_Row]) -> None:
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

    def _record(self, rows: list[_Row], logits: Tensor) -> None:
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

    def _stopped(self, row: _Row) -> bool:
        stops = row.request.sampling.stop
        if not stops:
            return False
        tail = row.tokens[-(max(map(len, stops)) + 4) :]  # an id holds at least a byte of text
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


class TorchEngine:
    """The embedded engine: one process, models that transformers loads, weights never copied."""

    def __init__(
        self,
        models: dict[str, LanguageModel],
        *,
        quiet: scope.Quiet,
        deterministic: bool = True,
        max_rows: int = 256,
        cache_gb: float = 2.0,
    ) -> None:
        self._decoders = {
            name: _Decoder(model, max_rows=max_rows, cache_bytes=int(cache_gb * 1e9))
            for name, model in sorted(models.items())
        }
        self._quiet = quiet
        self._deterministic = deterministic
        self._rows: dict[str, list[_Row]] = {}  # request id -> its completions
        self._pump: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> list[Completion]:
        decoder = self._decoders[request.policy]
        rows = [self._row(request, decoder, ordinal) for ordinal in range(request.n)]
        self._rows[request.id] = rows
        decoder.waiting += rows
        if self._pump is None or self._pump.done():
            # Started outside of the caller's scope: the pump is nobody's child.
            self._pump = asyncio.get_running_loop().create_task(self._run(), context=Context())
        try:
            with scope.waiting():
                return [await row.done for row in rows]
        finally:
            await self.cancel(request.id)

    def _row(self, request: Request, decoder: _Decoder, ordinal: int) -> _Row:
        model, sampling = decoder.model, request.sampling
        longest = min(model.max_length, decoder.max_ids)
        room = longest - len(request.prompt)
        if room < 1:
            raise ValueError(
                f"the prompt of {request.id} has {len(request.prompt)} ids; policy "
                f"{request.policy!r} has room for {longest - 1} (model {model.max_length}, "
                f"cache {decoder.max_ids})"
            )
        limit = min(sampling.max_tokens, room)
        seed = request.seed if request.n == 1 else seed_of(request.seed, ordinal)
        return _Row(
            request=request,
            done=asyncio.get_running_loop().create_future(),
            uniforms=np.random.default_rng(seed).random(limit).tolist(),
            limit=limit,
            ends=frozenset((*model.end_ids, *sampling.stop_ids)),
        )

    async def cancel(self, request_id: str) -> None:
        for row in self._rows.pop(request_id, []):
            row.done.cancel()  # an active row is dropped, and its cache row re-used, next step
        for decoder in self._decoders.values():
            decoder.waiting = [row for row in decoder.waiting if not row.done.cancelled()]

    async def _run(self) -> None:
        while any(d.waiting or d.active for d in self._decoders.values()):
            if self._deterministic:
                await self._quiet.wait()
            for decoder in self._decoders.values():
                try:
                    with torch.no_grad():
                        decoder.step()
                except Exception as error:  # every caller learns of it, none waits for ever
                    decoder.fail(error)
            await asyncio.sleep(0)

    async def load(self, policy: str, version: int, weights: dict[str, Tensor] | None) -> None:
        decoder = self._decoders[policy]
        if weights is not None:
            decoder.model.model.load_state_dict(weights, strict=False)
        decoder.version = version

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        model = self._decoders[policy].model
        ids = torch.from_numpy(np.concatenate([prompt, tokens])).long().to(model.device)
        layout = Rows([len(ids)], device=model.device)
        keep = torch.arange(len(prompt) - 1, len(ids) - 1, device=model.device)
        with torch.no_grad():
            logits = model.logits(ids, layout.position, layout=layout, keep=keep) / temperature
            logprobs = logits.log_softmax(-1).gather(-1, ids[keep + 1, None])[:, 0]
        return logprobs.cpu().numpy()

    async def sleep(self) -> None:
        for decoder in self._decoders.values():
            if not decoder.active:
                decoder.cache = None

    async def wake(self) -> None:
        return None


def _completion(row: _Row) -> Completion:
    return Completion(
        tokens=np.array(row.tokens, dtype=np.int32),
        logprobs=np.array(row.logprobs, dtype=np.float32),
        versions=np.array(row.versions, dtype=np.int32),
        finish=row.finish,
    )
