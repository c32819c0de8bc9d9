"""Connects processes over TCP that prove to each other that they know the same key.

`multiprocessing.connection.Listener` has keys too, but a caller that says nothing holds up
everybody behind it, and one that speaks another protocol ends its loop. Here each caller has a
thread and a time limit, and whoever does not know the key is dropped. What is sent afterwards is
not encrypted.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

log = logging.getLogger("rolecall")

HANDSHAKE_S = 10.0  # in which a caller must have proved that it knows the key
CALL_S = 60.0  # that a caller waits, behind strangers too, each of whom has HANDSHAKE_S
MOST_UNPROVED = 64  # callers that may be at it at once
NONCE = 32  # bytes
LARGEST_JSON = 2**20
Address = tuple[str, int]


class KeyRefusedError(ConnectionError):
    """The other side does not know the key."""


@dataclass(frozen=True, slots=True)
class Callers:
    """The processes that have called an address of this process and know its key."""

    address: Address
    key: bytes
    came: SimpleQueue[Connection]

    def next(self, *, timeout_s: float) -> Connection:
        """Return the connection of the next caller. Raises TimeoutError if none comes in time."""
        try:
            return self.came.get(timeout=max(0.0, timeout_s))
        except Empty:
            raise TimeoutError from None


@contextmanager
def callers(host: str, *, number: int, key: bytes | None = None) -> Iterator[Callers]:
    """Listen at an address of this machine, for about `number` callers at once.

    A new key is made unless one is passed. Raises OSError where nothing can listen at `host`.
    """
    key = key or secrets.token_bytes(32)
    came: SimpleQueue[Connection] = SimpleQueue()
    with _listening_socket(host, number) as listener:
        address = listener.getsockname()[:2]
        threading.Thread(target=_accept, args=(listener, key, came), daemon=True).start()
        try:
            yield Callers(address, key, came)
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def connect(address: Address, key: bytes, *, timeout_s: float = CALL_S) -> Connection:
    """Call a process that listens with `callers`.

    Raises KeyRefusedError where it does not know the key, and OSError where nobody answers.
    """
    host, port = address
    with socket.create_connection((host, port), timeout=timeout_s) as called:
        _prove(called, key, ours=b"caller", theirs=b"listener")
        return _connection(called)


def send_json(connection: Connection, message: Any) -> None:
    """Send a message that any process may read without running code of it."""
    connection.send_bytes(json.dumps(message).encode())


def read_json(connection: Connection) -> Any:
    """Read a message of `send_json`.

    Raises EOFError or OSError where the other side has gone, and ValueError for other messages.
    """
    return json.loads(connection.recv_bytes(LARGEST_JSON))


def _listening_socket(host: str, number: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=number + MOST_UNPROVED)


def _accept(listener: socket.socket, key: bytes, came: SimpleQueue[Connection]) -> None:
    """Take callers until the listener is closed."""
    free = threading.BoundedSemaphore(MOST_UNPROVED)

    def prove(called: socket.socket) -> None:
        try:
            with called:
                called.settimeout(HANDSHAKE_S)
                _prove(called, key, ours=b"listener", theirs=b"caller")
                came.put(_connection(called))
        except OSError as error:
            log.info("dropped a caller at a keyed address: %s", error)
        finally:
            free.release()

    while True:
        free.acquire()
        try:
            called, _ = listener.accept()
        except ConnectionError:  # it has hung up before it was accepted
            free.release()
            continue
        except OSError:  # the listener is closed
            return
        threading.Thread(target=prove, args=(called,), daemon=True).start()


def _prove(called: socket.socket, key: bytes, *, ours: bytes, theirs: bytes) -> None:
    """Prove to each other that both know the key. Raises OSError."""
    nonce = secrets.token_bytes(NONCE)
    called.sendall(nonce)
    other = _exactly(called, NONCE)
    called.sendall(_proof(key, ours, nonce, other))
    proof = _exactly(called, len(_proof(b"k", b"", b"", b"")))
    if not hmac.compare_digest(proof, _proof(key, theirs, other, nonce)):
        raise KeyRefusedError("the other side does not know the key")


def _proof(key: bytes, who: bytes, own_nonce: bytes, other_nonce: bytes) -> bytes:
    return hmac.digest(key, who + b"\0" + own_nonce + other_nonce, "sha256")


def _exactly(called: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        chunk = called.recv(size - len(parts))
        if not chunk:
            raise ConnectionError("the other side has hung up")
        parts += chunk
    return parts


def _connection(called: socket.socket) -> Connection:
    called.settimeout(None)
    called.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(called.detach())
