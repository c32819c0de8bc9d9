"""Connects to an MCP server at a URL, with a bound on each of its answers.

The mcp package bounds each event of a stream of events. An answer that is one JSON text it reads
whole, whatever its size, so here what comes is counted while it comes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rolecall.runtime.http import limit_body
from rolecall.runtime.secret_texts import remember_secrets_of_url
from rolecall.tools.mcp_stdio import MOST_LINE

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams


EVENTS = "text/event-stream"  # goes on for as long as the connection


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[TransportStreams]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    remember_secrets_of_url(url)
    # Of what is compressed, a few bytes could become any number.
    async with create_mcp_http_client(headers={"Accept-Encoding": "identity"}) as client:
        client.event_hooks = {"response": [_bound]}
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


async def _bound(response: Any) -> None:
    """Let an answer's body end with an error where it is too long."""
    import httpx2

    if response.headers.get("content-type", "").startswith(EVENTS):
        return
    whole = response.stream

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in limit_body(whole, MOST_LINE):
                yield chunk

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Bounded()
