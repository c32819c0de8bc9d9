"""Passes each request on to the engine of its policy, and all else to every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal

from rolecall.core.async_types import Work
from rolecall.core.interfaces.engine import Completion, Engine, Request, TextEngine
from rolecall.core.types import Floats, Ids


class SeveralEngines(Engine):
    """Samples where not all policies have the same engine."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        """`engines` by policy; several policies may name one."""
        self.engines = engines
        self.distinct = list({id(engine): engine for engine in engines.values()}.values())
        # What takes messages samples nothing that is trained or compared.
        samplers = [engine for engine in self.distinct if not isinstance(engine, TextEngine)]
        self.can = frozenset.intersection(*(engine.can for engine in samplers or self.distinct))
        self._asked: dict[str, Engine] = {}  # by request id

    async def generate(self, request: Request) -> list[Completion]:
        engine = self._asked[request.id] = self.engines[request.policy]
        try:
            return await engine.generate(request)
        finally:
            self._asked.pop(request.id, None)

    async def cancel(self, request_id: str) -> None:
        if request_id in self._asked:
            await self._asked[request_id].cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        return await self.engines[policy].score(policy, prompt, tokens, temperature=temperature)

    async def pause(self, *, keep: bool) -> None:
        await self._each(engine.pause(keep=keep) for engine in self.distinct)

    async def resume(self) -> None:
        await self._each(engine.resume() for engine in self.distinct)

    async def reset_prefix_cache(self) -> None:
        await self._each(engine.reset_prefix_cache() for engine in self.distinct)

    async def sleep(self, *, weights: bool) -> None:
        await self._each(engine.sleep(weights=weights) for engine in self.distinct)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        await self._each(engine.wake(part) for engine in self.distinct)

    async def check(self) -> None:
        await self._each(engine.check() for engine in self.distinct)

    async def close(self) -> None:
        await self._each(engine.close() for engine in self.distinct)

    async def _each(self, calls: Iterable[Work[None]]) -> None:
        """Await all calls to their ends, also where one fails."""
        waiting: list[Work[None]] = list(calls)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error
