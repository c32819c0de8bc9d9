"""Sends JSON to an HTTP server and reads its answer up to a bound."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Container, Mapping
from typing import TYPE_CHECKING

from rolecall.core.errors import TooLongError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import optional
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.retrying import (
    MOST_TOLD,
    PASSING,
    RefusedError,
    UnreachableError,
    describe_error,
    failure,
)
from rolecall.runtime.secret_texts import excerpt, remember_secret

if TYPE_CHECKING:
    import httpx

# Of what is compressed, a few bytes could become any number.
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class Http:
    """Single tries, for `Retrying` to repeat. Time is limited by whoever calls."""

    def __init__(
        self,
        *,
        extra: str,  # that has httpx, for the message where it is missing
        headers: Mapping[str, str] | None = None,
        trust_env: bool = True,  # take proxies from environment variables
        passing: Container[int] = PASSING,  # statuses that another try may change
    ) -> None:
        """Set up the client; raises ConfigError if httpx is not installed."""
        optional("httpx", extra=extra)
        for name, value in (headers or {}).items():
            if name.lower() == "authorization":
                remember_secret(value.partition(" ")[2])
        self._headers, self._trust_env = {**HEADERS, **(headers or {})}, trust_env
        self._passing = passing
        self._clients = PerLoop(self._connect)

    def _connect(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            timeout=None,
            headers=self._headers,
            trust_env=self._trust_env,
            limits=httpx.Limits(max_connections=None),  # `Retrying` says how many at once
        )

    async def ask(
        self, method: str, url: str, *, most_bytes: int, body: JsonObject | None = None
    ) -> bytes:
        """Return the content of an answer with status 200; `body` is sent as JSON.

        Raises UnreachableError where none comes, RetryableError for a status that may pass, and
        RefusedError for any other and for an answer of more than `most_bytes`.
        """
        import httpx

        sent = None if body is None else json.dumps(body)  # in ASCII: it takes half surrogates
        try:
            async with self._clients.get().stream(method, url, content=sent) as response:
                parts = [chunk async for chunk in limit_body(response.aiter_bytes(), most_bytes)]
        except httpx.RequestError as error:
            raise UnreachableError(describe_error(error)) from error
        except TooLongError as error:
            raise RefusedError(str(error), status=response.status_code) from error
        content = b"".join(parts)
        if response.status_code == 200:
            return content
        message = f"HTTP {response.status_code}: {excerpt(content, MOST_TOLD)}"
        raise failure(
            response.status_code, message, headers=response.headers, passing=self._passing
        )

    async def close(self) -> None:
        """Close the connections of the running event loop; a later request opens new ones."""
        client = self._clients.pop()
        if client is not None:
            await client.aclose()


async def limit_body(parts: AsyncIterable[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come; raises TooLongError once they are too many bytes."""
    size = 0
    async for chunk in parts:
        size += len(chunk)
        if size > most_bytes:
            raise TooLongError(f"an answer of more than {most_bytes} bytes")
        yield chunk
