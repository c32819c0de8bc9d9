"""Serves PyTorch's TCP store at one address of this machine.

PyTorch itself listens at every address, whatever host it is told. A store has no keys: whoever
reaches it can read, list and change all that stands there. What must not be changed is signed.
"""

from __future__ import annotations

import hmac
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

TIMEOUT = timedelta(minutes=5)  # in which a value that is waited for must be there
SIGNATURE = 64  # characters


class ForgedValueError(RuntimeError):
    """A value of a store was not written by a process that knows the secret."""


def serve_store(host: str, port: int = 0, *, timeout: timedelta = TIMEOUT) -> TCPStore:
    """Return a store that listens at `host` alone. Raises OSError where nothing can listen."""
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128)
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=timeout,
    )


def set_signed(store: Store, key: str, value: str, *, secret: str) -> None:
    """Write a value that `get_signed` accepts."""
    store.set(key, _signature(key, value, secret) + value)


def get_signed(store: Store, key: str, *, secret: str) -> str:
    """Read a value of `set_signed`. Raises ForgedValueError where somebody else wrote it."""
    signed = store.get(key).decode(errors="replace")
    signature, value = signed[:SIGNATURE], signed[SIGNATURE:]
    if not hmac.compare_digest(signature.encode(), _signature(key, value, secret).encode()):
        raise ForgedValueError(f"{key!r} in the store was not written by this run")
    return value


def _signature(key: str, value: str, secret: str) -> str:
    return hmac.digest(secret.encode(), f"{key}\0{value}".encode(), "sha256").hex()
