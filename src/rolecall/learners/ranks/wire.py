"""Writes and reads the messages between the trainer and its ranks.

To a rank: (method, arguments). From a rank: (whether it was done, result or failure). These are
pickles, so a connection is either a socket without a name, which a child inherits, or one of
`runtime/keyed_sockets.py`, both of whose ends have proved that they know a key.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rolecall.config.registry import import_object
from rolecall.learners.by_agent import ByAgent

# (start,) or (method, arguments) to a rank; (whether it was done, answer or failure) from it.
Message = tuple[Any, ...]


USER_MODULE = "rolecall_user_"  # how the registry names modules that it reads from files


@dataclass(frozen=True, slots=True)
class Start:
    """Holds the first message to a rank."""

    rank: int
    size: int
    device: str  # cpu, cuda:1
    rendezvous: str  # the URL at which the ranks find one another, as PyTorch takes it
    threads: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call was not done."""

    text: str
    of_others: bool  # another rank had gone: that one's failure is the cause


@dataclass(frozen=True, slots=True)
class Shipped:
    """An object with the files that its class and its bases come from, where users wrote them."""

    files: tuple[tuple[str, str], ...]  # a file, and the name of the class in it
    pickled: bytes

    @classmethod
    def pack(cls, value: Any) -> Shipped:
        parts = value.algorithms.values() if isinstance(value, ByAgent) else [value]
        classes = [
            (str(sys.modules[kind.__module__].__file__), kind.__name__)
            for algorithm in parts
            for kind in type(algorithm).__mro__
            if kind.__module__.startswith(USER_MODULE)
        ]
        return cls(tuple(classes), pickle.dumps(value))

    def unpack(self) -> Any:
        for file, name in self.files:
            import_object(f"{file}:{name}", key="learner")
        return pickle.loads(self.pickled)


def send(connection: Connection, message: Message) -> None:
    """Send without `Connection.send`, for which torch would put tensors into shared memory."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def read(connection: Connection) -> Message:
    """Read a message; raises EOFError or OSError if the other side is gone."""
    return pickle.loads(connection.recv_bytes())


def broadcast(connections: Iterable[Connection], messages: Iterable[Message]) -> None:
    for connection, message in zip(connections, messages, strict=True):
        send(connection, message)
