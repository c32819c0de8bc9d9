"""Finds the hits of a query in indexes or servers, merged and cached.

`await client.query("who wrote Emma", topk=3)` -> [Hit, ...]
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from rolecall.retrieval.base import EmptyQueryError, Hit, SearchDownError, SearchError
from rolecall.runtime.call_tree import outside
from rolecall.runtime.per_loop import PerLoop

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


MOST_TRIAL_S = 10.0  # that a first query may take
TRIAL = "who wrote Emma"  # a query that any corpus can answer, if with nothing
REMEDY = (
    "Start one there (`rolecall serve search --corpus FILE`), or set `url` to one that runs, with "
    "its `dialect`"
)
Key = tuple[str, str, int]  # identity of the source, normal query, topk


class Source(Protocol):
    """Answers queries."""

    identity: str  # of the corpus and its index, or of the servers that have them
    largest: int  # queries that one call may hold
    at_once: int  # calls that may be under way
    trouble: str  # what last went wrong, if anything did

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Search; raises SearchError if it cannot be known what the queries find."""
        ...

    async def close(self) -> None: ...


class SearchClient:
    """Asks one source, for many episodes at once."""

    def __init__(
        self,
        source: Source,
        *,
        deadline_s: float = 30.0,  # of a query, from the call to its hits
        most_failures: int | None = 10,  # calls that fail in a row before no more are made
        most_cached: int = 10_000,  # queries whose hits are kept
        remedy: str = REMEDY,  # what to do where nobody answers
    ) -> None:
        self.remedy = remedy
        self.source, self.deadline_s = source, deadline_s
        self.most_failures, self.most_cached = most_failures, most_cached
        self.failures = 0  # calls that failed since one succeeded
        self.last_failure = ""
        self._cache: OrderedDict[Key, list[Hit]] = OrderedDict()
        # Futures and tasks of another event loop are of no use.
        self._batches = PerLoop(
            lambda: Batches(self._call, largest=source.largest, at_once=source.at_once)
        )

    async def query(self, text: str, topk: int = 3) -> list[Hit]:
        """At most `topk` hits, best first; none is a result like any other.

        Raises EmptyQueryError for a text without content, SearchError if it stays unknown what
        it finds, and SearchDownError once too many calls in a row have failed.
        """
        # What is no text, such as half of a pair of surrogates, must not fail a whole request.
        normal = " ".join(text.encode(errors="replace").decode().split())
        if not normal:
            raise EmptyQueryError("the query is empty")
        if topk < 1:
            raise ValueError(f"topk must be at least 1 (it is {topk})")
        key = (self.source.identity, normal, topk)
        if key not in self._cache:
            hits = await self._ask(normal, topk)
            self._cache[key] = hits
            if len(self._cache) > self.most_cached:
                self._cache.popitem(last=False)
            return list(hits)
        self._cache.move_to_end(key)
        return list(self._cache[key])

    async def check(self) -> None:
        """Ask one query. Raises SearchDownError where nobody answers it, naming whom was asked."""
        try:
            async with asyncio.timeout(min(MOST_TRIAL_S, self.deadline_s)):
                await self.source.search([TRIAL], 1)
        except (SearchError, TimeoutError) as error:
            reason = self.source.trouble or str(error) or "no answer"
            raise SearchDownError(
                f"no search at {self.source.identity}, which was asked for {TRIAL!r}: {reason}. "
                f"{self.remedy}"
            ) from error
        finally:
            await self.close()  # connections belong to an event loop, and the run has its own

    async def close(self) -> None:
        await self.source.close()

    async def _ask(self, query: str, topk: int) -> list[Hit]:
        if self.most_failures is not None and self.failures >= self.most_failures:
            raise SearchDownError(
                f"{self.failures} searches in a row failed, the last one so: {self.last_failure}"
            )
        try:
            async with asyncio.timeout(self.deadline_s):
                return await self._batches.get().ask(query, topk)
        except TimeoutError as error:
            reason = self.source.trouble or self.source.identity
            raise SearchError(f"no answer in {self.deadline_s:g} s: {reason}") from error

    async def _call(self, queries: list[str], topk: int) -> list[list[Hit]]:
        try:
            hits = await self.source.search(queries, topk)
        except SearchError as error:
            self.failures += 1
            self.last_failure = str(error)
            raise
        self.failures = 0
        return hits
