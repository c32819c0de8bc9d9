"""A new engine on one page: one token after another, the whole text read again for each.

engine: {name: examples/plain_engine.py:PlainEngine, options: {most_at_once: 4}}

`PlainBackend` is the same engine, which also says what it cannot do and what memory it takes:
`rolecall check` and `rolecall plan` show it.

engine: {name: examples/plain_engine.py:PlainBackend, options: {most_at_once: 4}}
"""

import asyncio
from collections.abc import Iterator

import numpy as np
import torch

from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.types import Floats, Ids
from rolecall.engines.backend import EngineBackend
from rolecall.engines.inputs import EngineInputs
from rolecall.models.attention.layouts import Rows
from rolecall.models.memory_needs import Need
from rolecall.models.sizes import Size
from rolecall.runtime.call_tree import waiting


class PlainEngine(Engine):
    can = frozenset({"exact", "score_at_temperature"})

    def __init__(self, inputs: EngineInputs, *, most_at_once: int = 8) -> None:
        self.models = inputs.models
        self.versions = dict.fromkeys(inputs.models, 0)
        self.free = asyncio.Semaphore(most_at_once)

    async def generate(self, request: Request) -> list[Completion]:
        with waiting():  # the episode's coroutine waits for the engine, not for the world
            async with self.free:
                return [self._sample(request, number) for number in range(request.n)]

    def _sample(self, request: Request, number: int) -> Completion:
        sampling, ends = request.sampling, self.models[request.policy].end_ids
        random = np.random.default_rng((request.seed, number))
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < sampling.max_tokens and not (tokens and tokens[-1] in ends):
            ids = np.append(request.prompt, tokens).astype(np.int32)
            [next_one] = self._logprobs(request.policy, ids, 1, sampling.temperature)
            chances = np.exp(next_one.astype(np.float64))
            tokens.append(int(random.choice(len(chances), p=chances / chances.sum())))
            logprobs.append(float(next_one[tokens[-1]]))
        return Completion(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            versions=np.full(len(tokens), self.versions[request.policy], dtype=np.int32),
            finish="stop" if tokens[-1] in ends else "length",
        )

    def _logprobs(self, policy: str, ids: Ids, number: int, temperature: float) -> Floats:
        """Of every token after each of the last `number` of `ids`: [number, vocabulary]."""
        model = self.models[policy]
        row = torch.from_numpy(ids).long().to(model.device)
        layout = Rows([len(row)], device=model.device)
        keep = torch.arange(len(row) - number, len(row), device=model.device)
        with torch.no_grad():
            logits = model.logits(row, layout.position, layout=layout, keep=keep) / temperature
        return logits.log_softmax(-1).cpu().numpy()

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        ids = np.concatenate([prompt, tokens])
        logprobs = self._logprobs(policy, ids[:-1], len(tokens), temperature)
        return logprobs[np.arange(len(tokens)), tokens]

    async def cancel(self, request_id: str) -> None:
        return None

    def load(self, policy: str, version: int, weights: dict[str, torch.Tensor] | None) -> None:
        if weights is not None:
            self.models[policy].take(weights)
        self.versions[policy] = version


class PlainBackend(EngineBackend):
    """Answers for the plain engine what a run asks before it starts."""

    def check(self) -> Iterator[str]:
        yield from super().check()
        for name, agent in self.config.team.items():
            if agent.policy in self.policies and agent.sampling.top_p < 1:
                yield f"team.{name}.sampling.top_p: this engine keeps all tokens; write 1"

    def memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        yield from super().memory(policy, size, auto=auto)
        states = None if size is None else 4 * size.max_length * size.width
        for [device] in self.devices(auto=auto):
            yield Need(f"engine of {policy}", "states of one text", states, device, "sampling")

    def make(self, inputs: EngineInputs, *, most_at_once: int = 8) -> Engine:
        return PlainEngine(inputs, most_at_once=most_at_once)
