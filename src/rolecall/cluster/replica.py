"""Hosts one engine in an actor of Ray."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Literal

from rolecall.cluster.actor_process import Hosted, Place
from rolecall.core.interfaces.engine import Completion, Request
from rolecall.core.interfaces.learner import Rendezvous
from rolecall.core.interfaces.publisher import DirectEngine, FileEngine
from rolecall.core.types import Floats, Ids


class Gate:
    """Keeps requests of a policy out while its weights wait for those inside, and are replaced."""

    def __init__(self) -> None:
        self._inside: Counter[str] = Counter()
        self._closed: dict[str, asyncio.Event] = {}  # set when it opens
        self._empty: dict[str, asyncio.Event] = {}  # set when nobody is inside

    @asynccontextmanager
    async def request(self, policy: str) -> AsyncIterator[None]:
        while policy in self._closed:
            await self._closed[policy].wait()
        self._inside[policy] += 1
        try:
            yield
        finally:
            self._inside[policy] -= 1
            if not self._inside[policy] and policy in self._empty:
                self._empty[policy].set()

    @asynccontextmanager
    async def update(self, policy: str) -> AsyncIterator[None]:
        """Close the gate for one update at a time."""
        while policy in self._closed:
            await self._closed[policy].wait()
        opens = self._closed[policy] = asyncio.Event()
        empty = self._empty[policy] = asyncio.Event()
        try:
            if self._inside[policy]:
                await empty.wait()
            yield
        finally:
            del self._closed[policy], self._empty[policy]
            opens.set()


Make = Callable[[], Awaitable[FileEngine]]  # can be pickled


class Replica(Hosted):
    """Passes calls on to an engine of this process.

    Answers leave it when the weights that may have sampled them are known to be right: after
    `load_files` those of the policy wait here for `serve`, or end with this process.
    """

    def __init__(
        self, name: str, make: Make, scratch: Path, gpus: str | None, *, finishes: bool = False
    ) -> None:
        """`finishes`: requests under way end before the weights of their policy are replaced."""
        super().__init__(name, scratch, gpus)
        self.gate = Gate() if finishes else None
        self.make = make
        self.engine: FileEngine | None = None
        self._unproven: dict[str, asyncio.Event] = {}  # policies; set when answers may leave

    async def start(self) -> Place:
        """Load the models. Raises what makes that impossible."""
        if self.engine is None:
            with self.name_machine():
                self.engine = await self.make()
        return self.place

    async def generate(self, request: Request) -> list[Completion]:
        completions = await self._sampled(request)
        while request.policy in self._unproven:
            await self._unproven[request.policy].wait()
        return completions

    async def _sampled(self, request: Request) -> list[Completion]:
        if self.gate is None:
            return await self._engine.generate(request)
        async with self.gate.request(request.policy):
            return await self._engine.generate(request)

    async def cancel(self, request_id: str) -> None:
        await self._engine.cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, temperature: float) -> Floats:
        return await self._engine.score(policy, prompt, tokens, temperature=temperature)

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Load a policy's weights, which stay unproven until `serve`."""
        async with self._changed(policy):
            await self._engine.load_files(policy, version, folder)

    async def receive(self, policy: str, version: int, at: Rendezvous, number: int) -> None:
        """Do the same with weights that are sent."""
        engine = self._engine
        assert isinstance(engine, DirectEngine)
        async with self._changed(policy):
            await engine.receive(policy, version, at, number)

    @asynccontextmanager
    async def _changed(self, policy: str) -> AsyncIterator[None]:
        async with nullcontext() if self.gate is None else self.gate.update(policy):
            self._unproven.setdefault(policy, asyncio.Event())
            yield

    async def serve(self, policy: str) -> None:
        """Mark the policy's weights as proven."""
        if policy in self._unproven:
            self._unproven.pop(policy).set()

    async def pause(self, keep: bool) -> None:
        await self._engine.pause(keep=keep)

    async def resume(self) -> None:
        await self._engine.resume()

    async def reset_prefix_cache(self) -> None:
        await self._engine.reset_prefix_cache()

    async def sleep(self, weights: bool) -> None:
        await self._engine.sleep(weights=weights)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        await self._engine.wake(part)

    async def check(self) -> None:
        await self._engine.check()

    async def close(self) -> None:
        await self._engine.close()

    @property
    def _engine(self) -> FileEngine:
        assert self.engine is not None, "it has been started"
        return self.engine
