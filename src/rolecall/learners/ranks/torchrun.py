"""Joins ranks that torchrun has started: its rank 0 runs the trainer, the others serve it.

The trainer starts a process for rank 0 of the learner itself, as it does without torchrun. The
address of its socket lies in torchrun's store as JSON, for whoever reaches that store may write
there; the key of the socket does not (`shared_key.py`).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.core.errors import ConfigError, RunEndingError
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.keyed_sockets import (
    KeyRefusedError,
    callers,
    connect,
    read_json,
    send_json,
)
from rolecall.runtime.own_files import open_own

if TYPE_CHECKING:
    from torch.distributed import Store


VARIABLE = "ROLECALL_RANKS_KEY"
FILE = "ranks.key"
SHORTEST = 16  # letters of a key
BYTES = 32


def shared_key() -> bytes:
    """Return the key of this user's ranks, which is made at its first use.

    Raises ConfigError where there is no place for it, or the key is too short.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        try:
            text = _read_or_make(cache_folder() / FILE)
        except OSError as error:
            raise ConfigError(
                f"learner.ranks: no key for the ranks that torchrun starts: {error}; set "
                f"{VARIABLE} to the same random text on every machine"
            ) from error
    if len(text) < SHORTEST:
        raise ConfigError(
            f"{VARIABLE}: a key of {len(text)} letters can be guessed; write at least {SHORTEST}, "
            "as `openssl rand -hex 32` prints them"
        )
    return text.encode()


def _read_or_make(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        # Linked when it is whole: other ranks start at the same moment.
        new = file.with_name(f"{FILE}.{secrets.token_hex(8)}")
        with open(open_own(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as written:
            written.write(secrets.token_hex(BYTES))
        try:
            with suppress(FileExistsError):
                os.link(new, file)
        finally:
            new.unlink()
    with open(open_own(file, os.O_RDONLY)) as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            raise OSError(f"others may read {file}; run chmod 600 {file}")
        return opened.read().strip()


ADDRESS = "rolecall/trainer"  # key of the store
STORE_S = 600.0  # until the trainer's address must be there
_taken = threading.Event()


def size() -> int | None:
    """Return how many processes torchrun has started, or None if it has not started this one."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def is_server() -> bool:
    """Return whether this process is to serve a trainer."""
    return size() is not None and int(os.environ["RANK"]) > 0


def local_rank() -> int:
    """Return the number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def serve_trainer(serve: Callable[[Connection], None]) -> None:
    """Find the trainer and serve it until it ends; returns where it needs no ranks.

    Raises RunEndingError where what the store names is no trainer with this user's key.
    """
    address = _read_address(_store().get(ADDRESS))
    if address is None:
        return
    try:
        connection = connect(address, shared_key())
    except KeyRefusedError as error:
        raise RunEndingError(
            f"the trainer at {address[0]}:{address[1]}, which torchrun's store names, does not "
            f"know this rank's key; set {VARIABLE} to the same text on every machine"
        ) from error
    send_json(connection, (int(os.environ["RANK"]), local_rank()))
    serve(connection)


def _read_address(text: bytes) -> tuple[str, int] | None:
    """Read a trainer's address; raises RunEndingError if the text is not an address."""
    try:
        address = json.loads(text)
        return None if address is None else (str(address[0]), int(address[1]))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RunEndingError("no address of a trainer stands in torchrun's store") from error


def is_taken() -> bool:
    """Return whether this trainer has already called the ranks, which serve it once."""
    return _taken.is_set()


def dismiss() -> None:
    """Let ranks end that this trainer has not needed; without torchrun there are none."""
    if size() is not None and not is_taken():
        _tell(None)


def accept_ranks(*, timeout_s: float) -> dict[int, tuple[Connection, int]]:
    """Return the connections of all ranks but 0, by rank, with their numbers on their machines.

    Ranks that do not connect in time are missing.
    """
    number = size()
    assert number is not None, "torchrun has started this process"
    ranks: dict[int, tuple[Connection, int]] = {}
    with callers(os.environ["MASTER_ADDR"], number=number, key=shared_key()) as listening:
        _tell(listening.address)
        with suppress(TimeoutError):
            while len(ranks) < number - 1:
                connection = listening.next(timeout_s=timeout_s)
                with suppress(EOFError, OSError):  # it has gone: it will be missing
                    rank, gpu = read_json(connection)
                    ranks[rank] = (connection, gpu)
    return ranks


def _tell(address: tuple[str, int] | None) -> None:
    _taken.set()
    _store().set(ADDRESS, json.dumps(address))


def _store() -> Store:
    """Connect to torchrun's own store, which its agent keeps."""
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_S))
