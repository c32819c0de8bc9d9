"""Queries in, the hits of HTTP servers out: tried again until the deadline, elsewhere first.

Consumes calls of any number of queries, produces their hits, and is unblocked by a reply, by the
end of a pause after a failure, or by the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rolecall.optional import optional
from rolecall.retrieval.base import Hit, SearchError
from rolecall.retrieval.dialects import Dialect, read_reply, request_body

if TYPE_CHECKING:
    import httpx

PASSING = (429, 500, 502, 503, 504)  # answers that another try may change
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # of a server that failed; doubled each time
TRIES_PER_DEADLINE = 3  # a try that takes longer than its share is given up


class PassingError(Exception):
    """A failure that another try, or another server, may not have."""

    def __init__(self, told: str, *, after_s: float = 0.0) -> None:
        super().__init__(told)
        self.after_s = after_s  # for as long the server wants to be left alone


@dataclass(slots=True)
class Server:
    url: str
    failures: int = 0  # in a row
    rests_until: float = 0.0  # on the loop's clock


class Servers:
    """Search servers with the same corpus; they are asked in turn, resting ones last."""

    def __init__(
        self, urls: Sequence[str], *, dialect: Dialect = "batch", deadline_s: float = 30.0
    ) -> None:
        """Raises ValueError for a URL that is not http(s)."""
        optional("httpx", extra="search")  # before a run, not in its first search
        if not urls:
            raise ValueError("no URL of a search server")
        self.servers = [Server(_endpoint(url)) for url in urls]
        self.dialect, self.deadline_s = dialect, deadline_s
        self.identity = " ".join(server.url for server in self.servers)
        self.largest = 1 if dialect == "single" else 64  # queries in a request
        self.at_once = 4 * len(urls)
        self.trouble = ""  # what the newest try that failed was told
        self._turn = 0
        self._random = Random()  # of pauses: nothing that is trained on depends on it
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Raises SearchError when the deadline is over or no further try can help."""
        tries = 0
        try:
            async with asyncio.timeout(self.deadline_s):
                while True:
                    server = self._next()
                    try:
                        found = await self._ask(server, queries, topk)
                    except PassingError as error:
                        self.trouble = f"{server.url}: {error}"
                        pause_s = self._rest(server, error.after_s)
                        tries += 1
                        if tries % len(self.servers) == 0:  # there is no other left to try
                            await asyncio.sleep(pause_s)
                    else:
                        server.failures = 0
                        return found
        except TimeoutError as error:
            told = self.trouble or self.identity
            raise SearchError(f"no answer in {self.deadline_s:g} s: {told}") from error

    async def close(self) -> None:
        if self._http is not None and self._loop is asyncio.get_running_loop():
            await self._http.aclose()
        self._http = None

    def _next(self) -> Server:
        now = asyncio.get_running_loop().time()
        self._turn += 1
        first = self._turn % len(self.servers)
        in_turn = self.servers[first:] + self.servers[:first]
        return min(in_turn, key=lambda server: max(server.rests_until, now))

    def _rest(self, server: Server, after_s: float) -> float:
        """Seconds for which a server that failed is not asked if there is another."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**server.failures)
        pause_s = max(pause_s * self._random.uniform(0.5, 1.5), after_s)
        server.failures += 1
        server.rests_until = asyncio.get_running_loop().time() + pause_s
        return pause_s

    async def _ask(self, server: Server, queries: list[str], topk: int) -> list[list[Hit]]:
        import httpx

        body = request_body(self.dialect, queries, topk)
        try:
            response = await self._client().post(server.url, json=body)
        except httpx.TransportError as error:
            raise PassingError(str(error) or type(error).__name__) from error
        told = f"HTTP {response.status_code} {response.text[:200]}"
        if response.status_code in PASSING:
            after = response.headers.get("Retry-After", "")
            raise PassingError(told, after_s=float(after) if after.isdecimal() else 0.0)
        if response.status_code != 200:
            raise SearchError(f"{server.url}: {told}")
        try:
            reply = response.json()
        except ValueError as error:
            raise SearchError(f"{server.url}: no JSON in {told}") from error
        return read_reply(reply, num_queries=len(queries), topk=topk)

    def _client(self) -> httpx.AsyncClient:
        """Connections belong to an event loop; a new loop gets new ones."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            try_s = self.deadline_s / TRIES_PER_DEADLINE
            self._http, self._loop = httpx.AsyncClient(timeout=try_s), loop
        return self._http


def _endpoint(url: str) -> str:
    """http://host:8000 -> http://host:8000/retrieve; a path that is given stays."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not the URL of a search server, such as http://host:8000")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/retrieve"
