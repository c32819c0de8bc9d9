"""Offers the tools of an MCP server to agents: a command that is started, or a URL.

One connection serves all episodes. When the server dies, the episodes that call it end with an
InfrastructureError, and the next one connects again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rolecall.core.errors import InfrastructureError, first_error
from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import optional
from rolecall.runtime.call_tree import outside
from rolecall.runtime.http import limit_body
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.secret_texts import remember_secrets_of_url
from rolecall.tools.call_parsing import cut
from rolecall.tools.mcp_stdio import MOST_LINE, start_server

if TYPE_CHECKING:
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams
    from mcp.types import ContentBlock
    from mcp.types import Tool as McpTool


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


MOST_CHARS, MOST_PARTS = 1_000_000, 1_000  # of one result
CONNECTION_CLOSED = -32000  # a JSON-RPC code that the mcp package makes itself


class Mcp:
    """Tools of one server: `command` and its arguments (stdio), or `url` (streamable HTTP)."""

    def __init__(
        self,
        command: list[str] | None = None,
        url: str | None = None,
        only: list[str] | None = None,
        start_s: float = 30.0,
    ) -> None:
        """command: program and arguments of a server that speaks over stdio.
        url: address of a server that speaks streamable HTTP.
        only: names of the tools that agents get; by default all.
        start_s: most seconds until the server has told its tools.
        """
        if (command is None) == (url is None):
            raise ValueError("mcp: either command or url is needed, and not both")
        optional("mcp", extra="mcp")
        if url is None:
            if not command:
                raise ValueError("mcp: command is empty; give a program and its arguments")
            self._target: Callable[[], Transport] = lambda: start_server(command)
        else:
            self._target = lambda: connect(url)
        self.only, self.start_s = only, start_s
        self._connections = PerLoop(lambda: _Connection(self._target))

    async def check(self) -> None:
        """Check the server, which ends with this check.

        Raises InfrastructureError if the server cannot start, ValueError if it lacks a tool.
        """
        connection = _Connection(self._target)
        try:
            self._offered(await connection.tools(within_s=self.start_s))
        finally:
            await connection.close()

    def _offered(self, described: list[McpTool]) -> list[McpTool]:
        names = [tool.name for tool in described]
        if missing := sorted(set(self.only or []) - set(names)):
            raise ValueError(f"mcp: the server has no tool {missing[0]!r}; it has: {names}")
        return [tool for tool in described if self.only is None or tool.name in self.only]

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        if self._connections.get().lost:
            self._connections.pop()
        connection = self._connections.get()
        described = await connection.tools(within_s=self.start_s)
        yield [
            Tool(
                tool.name, tool.description or "", tool.input_schema, _caller(connection, tool.name)
            )
            for tool in self._offered(described)
        ]


def _caller(connection: _Connection, name: str) -> Callable[..., Awaitable[str]]:
    async def call(**arguments: Any) -> str:
        return await connection.call(name, arguments)

    return call


class _Connection:
    """A client that a task of its own holds open: what opens it must also close it."""

    def __init__(self, target: Callable[[], Transport]) -> None:
        self._described: asyncio.Future[list[McpTool]] = asyncio.get_running_loop().create_future()
        self._client: Any = None
        self._ended = asyncio.Event()
        self._holder = outside(self._hold(target))

    @property
    def lost(self) -> bool:
        return self._ended.is_set() or self._holder.done()

    async def tools(self, *, within_s: float) -> list[McpTool]:
        """Return the server's tools; raises InfrastructureError if they do not arrive in time."""
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._described)
        except TimeoutError as error:
            self._holder.cancel()
            message = f"the MCP server told no tools within {within_s:g} s"
            raise InfrastructureError(message) from error

    async def close(self) -> None:
        """Close the connection; returns when the server has ended."""
        self._ended.set()
        if not self._described.done():
            self._holder.cancel()
        await asyncio.wait([self._holder])

    async def call(self, name: str, arguments: JsonObject) -> str:
        from mcp import MCPError

        _check(arguments)
        if self.lost:
            raise InfrastructureError("the MCP server has gone")
        calling = outside(self._client.call_tool(name, arguments))
        try:
            await asyncio.wait([calling, self._holder], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not calling.done():
                calling.cancel()
        if not calling.done():
            raise InfrastructureError(f"the MCP server went while it ran {name!r}")
        try:
            result = calling.result()
        except MCPError as error:
            if error.error.code != CONNECTION_CLOSED:
                raise ToolError(error.error.message) from error
            raise self._loss(name, error) from error
        except Exception as error:  # whatever its transport raises
            raise self._loss(name, error) from error
        text = _joined(result.content)
        if result.is_error:
            raise ToolError(text)
        return text

    def _loss(self, name: str, error: Exception) -> InfrastructureError:
        self._ended.set()
        return InfrastructureError(f"the MCP server went while it ran {name!r}: {error}")

    async def _hold(self, target: Callable[[], Transport]) -> None:
        from mcp import Client

        try:
            async with Client(target()) as self._client:
                described = []
                page = await self._client.list_tools()
                described += page.tools
                while page.next_cursor:
                    page = await self._client.list_tools(cursor=page.next_cursor)
                    described += page.tools
                self._described.set_result(described)
                await self._ended.wait()
        except Exception as error:
            if not self._described.done():
                failure = InfrastructureError(
                    f"the MCP server does not answer: {first_error(error)}"
                )
                self._described.set_exception(failure)
        finally:
            self._ended.set()


def _check(arguments: JsonObject) -> None:
    """Check that arguments can be sent; raises ToolError otherwise.

    Sending invalid ones would end the connection for all episodes.
    """
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the arguments cannot be sent: {error}") from error


def _joined(parts: Sequence[ContentBlock]) -> str:
    """Return the first parts of a result, up to a bound that no agent is shown more of."""
    texts, remaining = [], MOST_CHARS
    for number, block in enumerate(parts):
        if remaining <= 0 or number == MOST_PARTS:
            texts.append(f"[{len(parts) - number} parts left out]")
            break
        texts.append(cut(_content_text(block), remaining))
        remaining -= len(texts[-1])
    return "\n".join(texts)


def _content_text(part: ContentBlock) -> str:
    """Text as it is; of pictures and sounds only what they are."""
    text = getattr(part, "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"
