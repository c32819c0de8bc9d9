"""Chooses the engine of a request among several, and asks another one when it is lost.

A request goes to the engine that has read most of its prompt: that of its episode's last turn,
else that of its task. No turn is recorded before its answer has come, so the requests of a lost
engine go to another one with the same seed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from rolecall.cluster.supervised_actors import LostError, Member, ask
from rolecall.core.async_types import Work
from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.types import Floats, Ids
from rolecall.runtime import call_tree

Answer = TypeVar("Answer")
AHEAD = 8  # completions that an engine may be asked for more than another, to find a prefix read
REMEMBERED = 100_000  # episodes whose engine is known


class Homes:
    """Remembers where the newest episodes and tasks are at home."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Member] = OrderedDict()

    def choose(self, task: str, attempt: int, serving: list[Member]) -> Member:
        """Choose the member of an episode's last call, or else of its task.

        If the task's member has much more to do than others, choose the one with least to do; the
        first of `serving` among equals.
        """
        home = self._found.get((task, attempt))
        if home is None or not home.serves:
            idlest = min(serving, key=lambda member: member.load)
            home = self._found.get(task)
            if home is None or not home.serves or home.load > idlest.load + AHEAD:
                home = idlest
            self._put(task, home)
        self._put((task, attempt), home)
        return home

    def _put(self, key: Hashable, member: Member) -> None:
        self._found[key] = member
        self._found.move_to_end(key)
        if len(self._found) > REMEMBERED:
            self._found.popitem(last=False)


class Router(ABC):
    """Gives each call of an episode to a member, and to another one when that is lost."""

    def __init__(self) -> None:
        self._homes = Homes()

    @abstractmethod
    async def some(self) -> list[Member]:
        """Return those that serve. Raises RunEndingError where none will."""

    @abstractmethod
    def lost(self, member: Member, error: LostError) -> None:
        """Take note that an actor has not answered."""

    async def _answered(
        self,
        task: str,
        attempt: int,
        asked: Callable[[Member], Work[Answer]],
        *,
        load: int = 1,
    ) -> Answer:
        """Return what the first member says that is not lost.

        `load`: of the call, in completions.
        """
        while True:
            member = self._homes.choose(task, attempt, await self.some())
            member.load += load
            try:
                return await asked(member)
            except LostError as error:
                self.lost(member, error)
            finally:
                member.load -= load


class RoutedEngine(Router, Engine):
    """Samples with whichever of several engines serves best."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, Member] = {}  # by request id

    async def generate(self, request: Request) -> list[Completion]:
        async def ask_member(member: Member) -> list[Completion]:
            self._asked[request.id] = member
            try:
                completions: list[Completion] = await ask(member, "generate", request)
                return completions
            except asyncio.CancelledError:
                await self.cancel(request.id)
                raise
            finally:
                self._asked.pop(request.id, None)

        task, attempt, _ = request.order
        with call_tree.waiting():
            return await self._answered(task, attempt, ask_member, load=request.n)

    async def cancel(self, request_id: str) -> None:
        if member := self._asked.get(request_id):
            member.actor.cancel.remote(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        while True:
            member = (await self.some())[0]
            try:
                logprobs: Floats = await ask(member, "score", policy, prompt, tokens, temperature)
                return logprobs
            except LostError as error:
                self.lost(member, error)
