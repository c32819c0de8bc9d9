"""Gathers concurrent queries into calls with many of them.

Consumes queries, produces the hits of each, and is unblocked by the end of a call: what was asked
meanwhile is the next call. A query that finds nobody else waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rolecall.retrieval.base import Hit
from rolecall.runtime.call_tree import outside

Answer = Callable[[list[str], int], Awaitable[list[list[Hit]]]]  # (queries, topk) -> hits of each


@dataclass(frozen=True, slots=True)
class Waiting:
    query: str
    topk: int
    hits: asyncio.Future[list[Hit]]


class Batches:
    """Merges the queries of one event loop; a call holds different queries of one `topk`."""

    def __init__(self, answer: Answer, *, largest: int, at_once: int) -> None:
        """`largest`: queries in a call; `at_once`: calls under way at a time."""
        self.answer, self.largest, self.at_once = answer, largest, at_once
        self.waiting: deque[Waiting] = deque()
        self._calling = 0

    async def ask(self, query: str, topk: int) -> list[Hit]:
        """Return a query's hits; raises what the call that held the query raised."""
        mine = Waiting(query, topk, asyncio.get_running_loop().create_future())
        self.waiting.append(mine)
        if self._calling < self.at_once:
            self._calling += 1
            outside(self._call())  # it is no part of the episode that happened to ask first
        return await mine.hits

    async def _call(self) -> None:
        try:
            await asyncio.sleep(0)  # whoever asks in this turn of the loop shares the call
            while batch := self._take():
                await self._settle(batch)
        finally:
            self._calling -= 1

    def _take(self) -> list[Waiting]:
        """Take the oldest query and those behind it that fit into its call.

        Others keep their position.
        """
        batch: list[Waiting] = []
        others: list[Waiting] = []
        while self.waiting and len(batch) < self.largest:
            waiting = self.waiting.popleft()
            if waiting.hits.done():  # whoever asked has given up
                continue
            same = not batch or waiting.topk == batch[0].topk
            (batch if same else others).append(waiting)
        self.waiting.extendleft(reversed(others))
        return batch

    async def _settle(self, batch: list[Waiting]) -> None:
        queries = list(dict.fromkeys(waiting.query for waiting in batch))
        try:
            results = await self.answer(queries, batch[0].topk)
            hits = dict(zip(queries, results, strict=True))
        except Exception as error:  # it is raised where the queries were asked
            for waiting in batch:
                if not waiting.hits.done():
                    waiting.hits.set_exception(error)
            return
        for waiting in batch:
            if not waiting.hits.done():
                waiting.hits.set_result(hits[waiting.query])
