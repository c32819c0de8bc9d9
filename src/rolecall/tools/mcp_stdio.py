"""Starts an MCP server by a command and connects to its two streams of messages.

As the mcp package's own transport, with two differences: a line that the server writes is bounded,
so that no result fills the memory, and what it says on stderr reaches ours without control
characters.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from rolecall.core.errors import TooLongError
from rolecall.runtime.secret_texts import scrub
from rolecall.runtime.visible_text import visible

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams


MOST_LINE = 4 << 20  # bytes of one message
END_S = 2.0  # that a server has after its input has ended, and again after SIGTERM


@asynccontextmanager
async def start_server(command: Sequence[str]) -> AsyncIterator[TransportStreams]:
    """Start a server; raises OSError if the command cannot be started."""
    import anyio
    from mcp.client.stdio import get_default_environment

    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment(),
        limit=MOST_LINE,
        start_new_session=True,  # so that what the server starts ends with it
    )
    to_session, heard = anyio.create_memory_object_stream[Any](0)
    sent, from_session = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.create_task(_read(process, to_session)),
        asyncio.create_task(_write(process, from_session, to_session)),
        asyncio.create_task(_show_errors(process)),
    ]
    try:
        yield heard, sent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.shield(_end(process))
        for stream in (heard, sent, to_session, from_session):
            stream.close()


async def _show_errors(process: asyncio.subprocess.Process) -> None:
    """Pass on what the server says on stderr, without keys and without control characters."""
    assert process.stderr is not None
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    while chunk := await process.stderr.read(1 << 16):
        with suppress(AttributeError, OSError, ValueError):  # a notebook has no stderr
            sys.stderr.write(visible(scrub(decode(chunk))))
            sys.stderr.flush()


async def _read(process: asyncio.subprocess.Process, to_session: Any) -> None:
    """Read the server's lines until it ends or one is too long; invalid messages are passed on."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    assert process.stdout is not None
    async with to_session:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError as error:
                error_text = f"a message of more than {MOST_LINE} bytes"
                await to_session.send(TooLongError(error_text))
                raise TooLongError(error_text) from error
            if not line:
                return
            try:
                message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError as error:
                await to_session.send(error)
            else:
                await to_session.send(SessionMessage(message))


async def _write(process: asyncio.subprocess.Process, from_session: Any, to_session: Any) -> None:
    assert process.stdin is not None
    try:
        async for message in from_session:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
    except OSError:  # it does not listen any more: the session is told, instead of waiting
        await to_session.aclose()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End its input, then send SIGTERM, then SIGKILL, to it and what it started."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _ends(process):
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    await _ends(process)


async def _ends(process: asyncio.subprocess.Process) -> bool:
    """Return whether it ends in time. Its output is thrown away: a full pipe must not keep it."""
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await asyncio.gather(*map(_drained, (process.stdout, process.stderr)))
            await process.wait()
    return process.returncode is not None


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        continue
