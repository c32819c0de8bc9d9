"""Answers requests of running episodes by batched decoding in this process.

`generate` consumes one request and waits; the pump takes all that have come, prefills them, and
gives every running row one more token per step; the end of a row unblocks its caller. Policies that
train adapters of one base stand in the same batches. In deterministic mode the pump steps only
while every live coroutine waits for it, and rows stand in the order of (task, attempt, path), so
a batch holds the same rows in every run.
"""

from __future__ import annotations

import asyncio

import numpy as np
import torch
from torch import Tensor

from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.types import Floats, Ids
from rolecall.engines.local.scheduler import Scheduler, Sequence
from rolecall.models.language_model import LanguageModel
from rolecall.runtime import call_tree


class LocalEngine(Engine):
    """The embedded engine: one process, models that transformers loads, no weights of its own."""

    can = frozenset({"adapters", "exact", "score_at_temperature", "sleep"})

    def __init__(
        self,
        models: dict[str, LanguageModel],
        *,
        barrier: call_tree.IdleBarrier,
        deterministic: bool = True,
        max_sequences: int = 256,
        cache_gb: float = 2.0,
        free_on_update: bool = False,
        expected_ids: dict[str, int] | None = None,
    ) -> None:
        """`expected_ids`: of each policy, how many the rows of all that share its cache come to.

        Raises ValueError for a model that this engine cannot sample from."""
        if unlike := sorted(name for name, model in models.items() if not model.samples_here):
            raise ValueError(
                f"policies {unlike} cannot be sampled by the embedded engine: set engine: vllm"
            )
        sharing: dict[int, dict[str, LanguageModel]] = {}
        for name, model in sorted(models.items()):
            sharing.setdefault(id(model.model), {})[name] = model
        self._distinct = [
            Scheduler(
                policies,
                max_sequences=max_sequences,
                cache_bytes=int(cache_gb * 1e9),
                expected_ids=(expected_ids or {}).get(next(iter(policies))),
            )
            for policies in sharing.values()
        ]
        self._schedulers = {name: d for d in self._distinct for name in d.policies}  # by policy
        self._barrier = barrier
        self._deterministic = deterministic
        self._free_on_update = free_on_update
        self._rows: dict[str, list[Sequence]] = {}  # request id -> its completions
        self._pump: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> list[Completion]:
        rows = self._schedulers[request.policy].add(request)
        self._rows[request.id] = rows
        if self._pump is None or self._pump.done():
            self._pump = call_tree.outside(self._run())
        try:
            with call_tree.waiting():
                return [await row.done for row in rows]
        finally:
            await self.cancel(request.id)

    async def cancel(self, request_id: str) -> None:
        rows = self._rows.pop(request_id, [])
        for row in rows:
            if not row.done.done() or row.done.cancelled():  # its caller may have been cancelled
                self._schedulers[row.request.policy].cancel(row)

    async def _run(self) -> None:
        """Run the engine; every caller learns of an error, and none waits for ever."""
        while any(d.waiting or d.active for d in self._distinct):
            try:
                if self._deterministic:
                    await self._barrier.wait()
            except RuntimeError as error:  # an engine belongs to one event loop
                for scheduler in self._distinct:
                    scheduler.fail(error)
            for scheduler in self._distinct:
                try:
                    with torch.no_grad():
                        scheduler.step()
                except Exception as error:
                    scheduler.fail(error)
            await asyncio.sleep(0)

    @property
    def _idle(self) -> list[Scheduler]:
        """Return the schedulers without a row in flight; a waiting row may be read in part."""
        return [d for d in self._distinct if not d.active and not d.waiting]

    def load(self, policy: str, version: int, weights: dict[str, Tensor] | None) -> None:
        """Take new weights; None: they are the learner's own tensors, which have moved.

        Rows in flight go on with the new weights; `versions` say which token came from which.
        """
        scheduler = self._schedulers[policy]
        if weights is not None:
            scheduler.policies[policy].take(weights)
        scheduler.publish(policy, version)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        scheduler = self._schedulers[policy]
        ids = torch.from_numpy(np.concatenate([prompt, tokens])).long().to(scheduler.model.device)
        keep = torch.arange(len(prompt) - 1, len(ids) - 1, device=ids.device)
        with torch.no_grad():
            logits = scheduler.read(policy, ids, keep=keep) / temperature
            logprobs = logits.log_softmax(-1).gather(-1, ids[keep + 1, None])[:, 0]
        return logprobs.cpu().numpy()

    async def reset_prefix_cache(self) -> None:
        for scheduler in self._idle:
            scheduler.clear(free=False)

    async def sleep(self, *, weights: bool = False) -> None:
        """Give the caches back; the weights stay, because they are the learner's.

        A cache that recorded steps read is only emptied, because they need it at its address,
        unless `free_on_update` is set.
        """
        for scheduler in self._idle:
            scheduler.clear(free=self._free_on_update or not scheduler.records)
