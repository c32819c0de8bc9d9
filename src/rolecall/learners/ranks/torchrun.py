"""Joins ranks that torchrun has started: its rank 0 runs the trainer, the others serve it.

The trainer starts a process for rank 0 of the learner itself, as it does without torchrun. The
address and the key of its socket lie in torchrun's store.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

from rolecall.learners.ranks import wire

ADDRESS = "rolecall/trainer"  # key of the store
STORE_S = 600.0  # until the trainer's address must be there
_taken = threading.Event()


def size() -> int | None:
    """How many processes torchrun has started; None: it has not started this one."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def is_server() -> bool:
    """Whether this process is to serve a trainer."""
    return size() is not None and int(os.environ["RANK"]) > 0


def local_rank() -> int:
    """The number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def serve_trainer(serve: Callable[[Connection], None]) -> None:
    """Find the trainer and serve it until it ends; returns where it needs no ranks."""
    told = pickle.loads(_store().get(ADDRESS))
    if told is None:
        return
    address, key = told
    connection = Client(address, authkey=key)
    wire.send(connection, (int(os.environ["RANK"]), local_rank()))
    serve(connection)


def is_taken() -> bool:
    """Whether this trainer has already called the ranks, which serve it once."""
    return _taken.is_set()


def dismiss() -> None:
    """Let ranks end that this trainer has not needed; without torchrun there are none."""
    if size() is not None and not is_taken():
        _tell(None)


def accepted(*, timeout_s: float) -> dict[int, tuple[Connection, int]]:
    """The connections of all ranks but 0, by rank, with their numbers on their machines.

    Those that have not come in time are missing.
    """
    number = size()
    assert number is not None, "torchrun has started this process"
    found: dict[int, tuple[Connection, int]] = {}
    with wire.callers(os.environ["MASTER_ADDR"], number=number) as callers:
        _tell((callers.address, callers.key))
        with suppress(TimeoutError):
            while len(found) < number - 1:
                connection = callers.next(timeout_s=timeout_s)
                rank, place = wire.read(connection)
                found[rank] = (connection, place)
    return found


def _tell(what: Any) -> None:
    _taken.set()
    _store().set(ADDRESS, pickle.dumps(what))


def _store() -> Any:
    """torchrun's own, which its agent keeps."""
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_S))
