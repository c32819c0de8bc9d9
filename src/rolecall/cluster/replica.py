"""Hosts one engine in an actor of Ray, and does on its machine what others ask for."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rolecall.cluster.endings import count_oom_kills
from rolecall.config.errors import ConfigError
from rolecall.interfaces.engine import Completion, Request
from rolecall.interfaces.publisher import FileEngine
from rolecall.types import Floats, Ids

Make = Callable[[], Awaitable[FileEngine]]  # can be pickled


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs, and what it writes to."""

    pid: int
    host: str
    node: str  # Ray's name of the machine
    log: Path
    oom_kills: int  # that the machine has counted before


def settled(name: str, scratch: Path) -> Place:
    """The place of this actor, which from now on writes to a log of its own."""
    import ray

    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / f"{name}.log"
    log.unlink(missing_ok=True)  # of one that had this name before
    with log.open("ab") as opened:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            os.dup2(opened.fileno(), number)
    node = ray.get_runtime_context().get_node_id()
    return Place(os.getpid(), socket.gethostname(), node, log, count_oom_kills())


class Replica:
    """Passes calls on to an engine of this process, and says that it is alive while that works."""

    def __init__(self, name: str, make: Make, scratch: Path) -> None:
        """`name`: of its log, in `scratch`."""
        self.place = settled(name, scratch)
        self.make = make
        self.engine: FileEngine | None = None

    async def start(self) -> Place:
        """Load the models. Raises what makes that impossible."""
        if self.engine is None:
            try:
                self.engine = await self.make()
            except ConfigError as error:  # what the config names may be missing on this machine
                raise ConfigError(
                    *(f"{p} (on {self.place.host})" for p in error.problems)
                ) from error
        return self.place

    async def ping(self) -> None:
        """In a thread of its own, so that it is answered while weights are loaded."""

    async def generate(self, request: Request) -> list[Completion]:
        return await self._engine.generate(request)

    async def cancel(self, request_id: str) -> None:
        await self._engine.cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, temperature: float) -> Floats:
        return await self._engine.score(policy, prompt, tokens, temperature=temperature)

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        await self._engine.load_files(policy, version, folder)

    async def pause(self, keep: bool) -> None:
        await self._engine.pause(keep=keep)

    async def resume(self) -> None:
        await self._engine.resume()

    async def forget(self) -> None:
        await self._engine.forget()

    async def sleep(self, weights: bool) -> None:
        await self._engine.sleep(weights=weights)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        await self._engine.wake(part)

    async def check(self) -> None:
        await self._engine.check()

    async def close(self) -> None:
        await self._engine.close()

    @property
    def _engine(self) -> FileEngine:
        assert self.engine is not None, "it has been started"
        return self.engine


def kill(pid: int) -> None:
    """End a process of this machine that answers nothing any more."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
