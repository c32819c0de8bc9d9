"""Says where an actor runs and what it writes to, and ends one that answers nothing any more."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rolecall.cluster.endings import count_oom_kills
from rolecall.core.errors import ConfigError
from rolecall.runtime.die_with_parent import end_with_parent
from rolecall.runtime.scratch import hold


@dataclass(frozen=True, slots=True)
class Place:
    """Tells where an actor runs, and what it writes to."""

    pid: int
    host: str
    node: str  # Ray's name of the machine
    log: Path
    oom_kills: int  # that the machine has counted before
    gpus: str | None = None  # those of the machine that it sees


def settle_actor(name: str, scratch: Path, gpus: str | None) -> Place:
    """Return the location of this actor, which from now on writes to a log of its own.

    `gpus`: those of its machine that it sees, "0,1"; None: what Ray lets it see.
    """
    import ray

    end_with_parent()
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # nothing of CUDA has been asked yet
    hold(scratch)
    log = scratch / f"{name}.log"
    log.unlink(missing_ok=True)  # of one that had this name before
    with log.open("ab") as opened:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            os.dup2(opened.fileno(), number)
    node = ray.get_runtime_context().get_node_id()
    return Place(os.getpid(), socket.gethostname(), node, log, count_oom_kills(), gpus)


class Hosted:
    """An actor that says where it is, and that it is alive."""

    def __init__(self, name: str, scratch: Path, gpus: str | None = None) -> None:
        """`name`: of its log, in `scratch`; `gpus`: as of `settled`."""
        self.place = settle_actor(name, scratch, gpus)

    @contextmanager
    def name_machine(self) -> Iterator[None]:
        """Name this machine in errors, as what the config names may be missing on it."""
        try:
            yield
        except ConfigError as error:
            where = (f"{problem} (on {self.place.host})" for problem in error.problems)
            raise ConfigError(*where) from error

    async def ping(self) -> None:
        """Answer in a thread of its own, while the actor computes."""

    async def until_the_end(self) -> None:
        """Never answer, so that the caller learns of the actor's end at once."""
        await asyncio.Event().wait()
