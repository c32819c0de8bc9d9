"""Asks HTTP servers for the hits of queries; after a failure another server is asked first."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from rolecall.retrieval.base import Hit, SearchError
from rolecall.retrieval.dialects import Dialect, read_reply, request_body
from rolecall.runtime.http import Http
from rolecall.runtime.retrying import (
    GaveUpError,
    RefusedError,
    RetryableError,
    Retrying,
    RetryLimits,
    within,
)
from rolecall.runtime.secret_texts import excerpt, remember_secrets_of_url, scrub

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # of a server that failed
TRIES_PER_DEADLINE = 3  # a try that takes longer than its share is given up
MOST_BYTES = 64 << 20  # of one reply


@dataclass(slots=True)
class Server:
    url: str
    failures: int = 0  # in a row
    rests_until: float = 0.0  # time.monotonic, before which another one is asked if there is one
    alone_until: float | None = None  # to which time it asked to be left alone


class Servers:
    """Search servers with the same corpus; they are asked in turn, resting ones last."""

    def __init__(
        self, urls: Sequence[str], *, dialect: Dialect = "batch", deadline_s: float = 30.0
    ) -> None:
        """Set up the servers.

        Raises ValueError for a URL that is not http(s), ConfigError without httpx.
        """
        if not urls:
            raise ValueError("no URL of a search server")
        self.servers = [Server(_endpoint(url)) for url in urls]
        for url in urls:
            remember_secrets_of_url(url)
        self.dialect, self.deadline_s = dialect, deadline_s
        self.identity = " ".join(server.url for server in self.servers)
        self.largest = 1 if dialect == "single" else 64  # queries in a request
        self.at_once = 4 * len(urls)
        self.trouble = ""  # what the newest try that failed was told
        self._turn = 0
        limits = RetryLimits(
            deadline_s=deadline_s,
            pause_s=FIRST_PAUSE_S,
            longest_pause_s=LONGEST_PAUSE_S,
            concurrency=self.at_once,
        )
        self._retrying = Retrying(limits)
        self._http = Http(extra="search")  # a missing package shows before the first search

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Search; raises SearchError when the deadline is over or no further try can help."""
        try:
            return await self._retrying.call(lambda: self._try(queries, topk))
        except GaveUpError as error:
            reason = self.trouble or scrub(self.identity)
            raise SearchError(f"no answer in {error.limit}: {reason}") from error

    async def close(self) -> None:
        await self._http.close()

    async def _try(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Ask one server; one that fails rests. Raises RetryableError, SearchError."""
        server = self._next()
        body = request_body(self.dialect, queries, topk)
        try:
            async with within(self.deadline_s / TRIES_PER_DEADLINE):
                content = await self._http.ask("POST", server.url, body=body, most_bytes=MOST_BYTES)
        except RetryableError as error:
            self.trouble = scrub(f"{server.url}: {error}")
            raise self._resting(server, error) from error
        except RefusedError as error:
            raise SearchError(scrub(f"{server.url}: {error}")) from error
        server.failures, server.alone_until = 0, None
        try:
            reply = json.loads(content)
        except ValueError as error:
            raise SearchError(
                scrub(f"{server.url}: no JSON in {excerpt(content, 200)!r}")
            ) from error
        return read_reply(reply, num_queries=len(queries), topk=topk)

    def _next(self) -> Server:
        """Return the next server in turn that does not rest, else the one whose rest ends first."""
        now = time.monotonic()
        self._turn += 1
        first = self._turn % len(self.servers)
        in_turn = self.servers[first:] + self.servers[:first]
        return min(in_turn, key=lambda server: max(server.rests_until, now))

    def _resting(self, server: Server, error: RetryableError) -> RetryableError:
        """Let a server that failed rest, and say when another try makes sense: with another
        server at once, and with none before the time to which all asked to be left alone.
        """
        now = time.monotonic()
        server.failures += 1
        rest_s = self._retrying.limits.pause_after(server.failures, self._retrying.random)
        server.rests_until = now + max(rest_s, error.after_s or 0.0)
        server.alone_until = None if error.after_s is None else now + error.after_s
        free = any(other.rests_until <= now for other in self.servers)
        rests = [max(other.alone_until or 0.0, now) - now for other in self.servers]
        return RetryableError(str(error), after_s=min(rests) or None, at_once=free)


def _endpoint(url: str) -> str:
    """Return the address to ask: http://host:8000 -> http://host:8000/retrieve; a path that is
    given stays.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not the URL of a search server, such as http://host:8000")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/retrieve"
