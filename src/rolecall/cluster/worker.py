"""Plays episodes in an actor of Ray: its workflows, environments, tools and rewards run there.

The engines are asked from actor to actor, so that what is sampled does not pass the trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.cluster.actor_process import Hosted, Place
from rolecall.cluster.routing import RoutedEngine
from rolecall.cluster.supervised_actors import LostError, Member
from rolecall.core.errors import RunEndingError
from rolecall.core.types import Episode, Swap, Task
from rolecall.rollout.episodes import Played, PlaySettings, RolloutContext, play_until_done, replay
from rolecall.runtime.call_tree import task_factory
from rolecall.storage.journal import Journal

if TYPE_CHECKING:
    from ray.actor import ActorHandle


AGAIN_S = 1.0  # until an engine that did not answer is asked again, unless it is known to be lost


@dataclass(frozen=True, slots=True)
class Engines:
    """Holds the engines of one kind that serve now, as the trainer knows them."""

    serving: list[tuple[int, ActorHandle]]  # numbers and actors
    why: str = ""  # none of them will ever serve again


class SharedEngine(RoutedEngine):
    """Asks the engines that the trainer keeps alive."""

    def __init__(self, number: int) -> None:
        """Set up the worker of this `number`; each begins with another engine."""
        super().__init__()
        self.number, self.why = number, ""
        self.members: list[Member] = []
        self._changed = asyncio.Event()

    def take(self, told: Engines) -> None:
        """Ask these from now on."""
        members = {(member.number, member.actor): member for member in self.members}
        self.why = told.why
        self.members = []
        first = self.number % max(1, len(told.serving))
        for number, actor in told.serving[first:] + told.serving[:first]:
            member = members.pop((number, actor), None) or Member(number, actor)
            member.serves = True
            self.members.append(member)
        for member in members.values():
            member.serves = False
        self._changed.set()

    async def some(self) -> list[Member]:
        while not (serving := [member for member in self.members if member.serves]):
            if self.why:
                raise RunEndingError(self.why)
            self._changed.clear()
            await self._changed.wait()
        return serving

    def lost(self, member: Member, error: LostError) -> None:
        member.serves = False
        asyncio.get_running_loop().call_later(AGAIN_S, self._again, member)

    def _again(self, member: Member) -> None:
        member.serves = member in self.members
        self._changed.set()


Make = Callable[[], Awaitable[tuple[RolloutContext, list[SharedEngine]]]]  # can be pickled


class EpisodeWorker(Hosted):
    """Plays the episodes that it is given, as many at once as it is given."""

    def __init__(self, number: int, make: Make, scratch: Path) -> None:
        super().__init__(f"worker-{number}", scratch)
        self.number, self.make = number, make
        self.engines: list[SharedEngine] = []
        self.context: RolloutContext | None = None
        self.journal: Journal | None = None

    async def start(self) -> Place:
        """Make what episodes are played with. Raises what makes that impossible."""
        asyncio.get_running_loop().set_task_factory(task_factory)
        if self.context is None:
            with self.name_machine():
                self.context, self.engines = await self.make()
        return self.place

    async def meet(self, engines: list[Engines]) -> None:
        """Ask these from now on."""
        for engine, serving in zip(self.engines, engines, strict=True):
            engine.take(serving)

    async def play(
        self, task: Task, step: int | str, split: str, attempt: int, manner: PlaySettings,
        journal: Path | None,
    ) -> Played:  # fmt: skip
        """Play as `Player.play` does."""
        played = await play_until_done(
            self._context(manner), task, step=step, split=split, attempt=attempt
        )
        if journal is not None:
            self._journal(journal).append(played.episode)
        return played

    async def replay(self, episode: Episode, swap: Swap | None) -> Episode:
        return await replay(self._context(PlaySettings()), episode, swap)

    async def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
        if self.context is not None:
            await self.context.close()

    def _context(self, manner: PlaySettings) -> RolloutContext:
        assert self.context is not None, "it has been started"
        return self.context.with_settings(manner)

    def _journal(self, path: Path) -> Journal:
        """Return this worker's part of the journal of a step."""
        own = Journal(path).part(f"worker-{self.number}")
        if self.journal is None or self.journal.path != own.path:
            if self.journal is not None:
                self.journal.close()
            self.journal = own
        return self.journal
