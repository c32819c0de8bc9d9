"""Writes and reads the messages between the driver and vLLM's process: a length, then a pickle.

Both ends are ours and the socket between them has no name, so nobody else can send a pickle.

To vLLM: (number, method, arguments). From vLLM: (number, whether it was done, result or failure).
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any, Literal

LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """Tells why a call was not done: the caller's mistake, or vLLM's."""

    kind: Literal["value", "engine"]
    text: str


def pack(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def read(connection: socket.socket) -> Any | None:
    """Read the next message; None at the end. Raises TimeoutError as the socket does."""
    head = _exactly(connection, LENGTH.size)
    body = _exactly(connection, LENGTH.unpack(head)[0]) if head else b""
    return pickle.loads(body) if body else None


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Return exactly that many bytes, or none where the other side has gone."""
    parts = []
    while size:
        try:
            chunk = connection.recv(min(size, 1 << 20))
        except ConnectionError:
            return b""
        if not chunk:
            return b""
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


async def read_from(reader: asyncio.StreamReader) -> Any | None:
    """Return the next message of an asyncio stream; None at the end."""
    try:
        head = await reader.readexactly(LENGTH.size)
        return pickle.loads(await reader.readexactly(LENGTH.unpack(head)[0]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
