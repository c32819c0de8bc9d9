"""Copies a folder of one machine of a cluster to another one, over a socket between the two.

Neither the trainer's machine nor Ray's object stores see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rolecall.cluster.session import pin_to_node
from rolecall.runtime.keyed_sockets import Address, callers, connect, read_json, send_json

CALL_S = 60.0  # in which the machine that fetches must call the other one
PART = 2**24  # bytes that are read at once


def fetch_folder(folder: Path, source: str, to: Callable[[int], Path]) -> Path:
    """Put the files of a folder of another machine, `source` as Ray names it, into one of this.

    `to`: that one, which is there and empty, of how many bytes come. Raises RayError where the
    other machine is lost, and OSError where there is no room.
    """
    import ray

    offer: Any = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(offer_folder)
    messages = iter(offer.options(scheduling_strategy=pin_to_node(source)).remote(folder))
    address, key, size = ray.get(next(messages))
    here = to(size)
    try:
        with connect(address, key, timeout_s=CALL_S) as connection:
            _receive(connection, here)
    except (EOFError, ConnectionError):
        for more in messages:
            ray.get(more)  # raises what has let the other side down
        raise
    return here


def offer_folder(folder: Path) -> Iterator[tuple[Address, bytes, int]]:
    """Offer a folder's files to one caller; yields the address, the caller's key and their size."""
    import ray

    size = sum(file.stat().st_size for file in folder.iterdir())
    with callers(ray.util.get_node_ip_address(), number=1) as listening:
        yield listening.address, listening.key, size
        with listening.next(timeout_s=CALL_S) as connection:
            _send(connection, folder)


def _send(connection: Connection, folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            send_json(connection, (path.name, size))
            sent = 0
            while sent < size:
                sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)
    send_json(connection, None)


def _receive(connection: Connection, folder: Path) -> None:
    """Write the files that come into a folder.

    Raises EOFError where the other side ends before its last file has, and ValueError for a name
    that leads out of the folder.
    """
    chunk = memoryview(bytearray(PART))
    while (header := read_json(connection)) is not None:
        name, remaining = header
        if Path(name).name != name:
            raise ValueError(f"a file for {folder} may not be called {name!r}")
        with (folder / name).open("wb") as file:
            while remaining:
                read = os.readv(connection.fileno(), [chunk[: min(PART, remaining)]])
                if not read:
                    raise EOFError
                file.write(chunk[:read])
                remaining -= read
