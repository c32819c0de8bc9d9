"""A new engine on one page: one token after another, the whole text read again for each.

engine: {name: examples/plain_engine.py:PlainEngine, options: {most_at_once: 4}}
"""

import asyncio

import numpy as np
import torch

from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.types import Floats, Ids
from rolecall.engines.inputs import EngineInputs
from rolecall.models.attention.layouts import Rows
from rolecall.runtime.call_tree import waiting


class PlainEngine(Engine):
    can = frozenset({"exact", "score_at_temperature"})

    def __init__(self, parts: EngineInputs, *, most_at_once: int = 8) -> None:
        self.models = parts.models
        self.versions = dict.fromkeys(parts.models, 0)
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
        found = self._logprobs(policy, ids[:-1], len(tokens), temperature)
        return found[np.arange(len(tokens)), tokens]

    async def cancel(self, request_id: str) -> None:
        return None

    def load(self, policy: str, version: int, weights: dict[str, torch.Tensor] | None) -> None:
        if weights is not None:
            self.models[policy].take(weights)
        self.versions[policy] = version
