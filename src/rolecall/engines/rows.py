"""A request in, its completions as rows: what each will draw, has drawn, and when it is over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from rolecall.chat import Tokenizer
from rolecall.core import Ids
from rolecall.engines.base import Completion, Request
from rolecall.seeds import seed_of


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

    @property
    def read(self) -> Ids:
        """The ids whose keys and values the cache holds: the newest one is read when it decodes."""
        return np.append(self.request.prompt, np.array(self.tokens[:-1], dtype=np.int32))

    @property
    def over(self) -> bool:
        """Ended or cancelled."""
        return bool(self.finish) or self.done.done()

    def append(self, token: int, logprob: float, *, version: int, tokenizer: Tokenizer) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.ends or self._stopped(tokenizer):
            self.finish = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish = "length"

    def _stopped(self, tokenizer: Tokenizer) -> bool:
        stops = self.request.sampling.stop
        if not stops:
            return False
        # An id holds at least one byte of text.
        tail = self.tokens[-(max(len(stop.encode()) for stop in stops) + 4) :]
        text = tokenizer.decode(tail)
        return any(stop in text for stop in stops)

    def complete(self) -> None:
        """Unblock the caller."""
        if not self.done.done():
            self.done.set_result(
                Completion(
                    tokens=np.array(self.tokens, dtype=np.int32),
                    logprobs=np.array(self.logprobs, dtype=np.float32),
                    versions=np.array(self.versions, dtype=np.int32),
                    finish=self.finish,
                )
            )


def rows_of(request: Request, *, longest: int, ends: list[int]) -> list[Row]:
    """A row for each completion. Raises ValueError if the prompt leaves none of `longest` ids."""
    sampling = request.sampling
    room = longest - len(request.prompt)
    if room < 1:
        raise ValueError(
            f"the prompt of {request.id} has {len(request.prompt)} ids; policy "
            f"{request.policy!r} has room for {longest - 1}"
        )
    limit = min(sampling.max_tokens, room)
    seeds = [request.seed if request.n == 1 else seed_of(request.seed, i) for i in range(request.n)]
    return [
        Row(
            request=request,
            done=asyncio.get_running_loop().create_future(),
            uniforms=np.random.default_rng(seed).random(limit).tolist(),
            limit=limit,
            ends=frozenset((*ends, *sampling.stop_ids)),
        )
        for seed in seeds
    ]
