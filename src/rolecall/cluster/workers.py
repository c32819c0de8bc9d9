"""Has episodes played by actors of a cluster, and plays those of a lost one again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.routing import Router
from rolecall.cluster.session import RaySession
from rolecall.cluster.supervised_actors import ALWAYS, LostError, Member, Members, ask, await_result
from rolecall.cluster.worker import Engines, EpisodeWorker, Make
from rolecall.core.types import Episode, Swap, Task
from rolecall.rollout.episodes import Played, PlaySettings

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class Workers(Router):
    """The attempts at a task are played by one worker, while it has no more to do than others."""

    def __init__(
        self, session: RaySession, makes: list[Make], *, engines: list[ReplicatedEngine]
    ) -> None:
        """Begin to start the actors, each with one of `makes`.

        Each of `makes` gives a context and a SharedEngine for each of `engines`.
        """
        super().__init__()
        self.session, self.engines, self._makes = session, engines, makes
        self.workers = Members(
            session, "worker {}", len(makes), self._actor, bring_up=self._introduce
        )
        for engine in engines:
            engine.watchers.append(self._tell)

    def _actor(self, number: int, avoided: str) -> ActorHandle:
        options = self.session.actor_options(number, avoided=avoided)
        remote_class = self.session.ray.remote(**ALWAYS, **options)(EpisodeWorker)
        return remote_class.remote(number, self._makes[number], self.session.scratch)

    async def start(self) -> None:
        """Wait until all can play. Raises what one of them raises that cannot."""
        await self.workers.start()

    async def _introduce(self, member: Member) -> None:
        await ask(member, "meet", self._serving())

    def _tell(self) -> None:
        """Tell all workers which engines serve now."""
        for member in self.workers.serving:
            member.actor.meet.remote(self._serving())

    def _serving(self) -> list[Engines]:
        return [
            Engines(
                [(member.number, member.actor) for member in engine.engines.serving],
                engine.members[0].why if all(m.why for m in engine.members) else "",
            )
            for engine in self.engines
        ]

    async def play(
        self, task: Task, *, step: int | str, split: str, attempt: int, manner: PlaySettings,
        journal: Path | None,
    ) -> Played:  # fmt: skip
        """Play as `Player.play` does. Raises RunEndingError where no worker is left."""
        played: Played = await self._asked(
            task.id, attempt, "play", task, step, split, attempt, manner, journal
        )
        return played

    async def replay(self, episode: Episode, swap: Swap | None) -> Episode:
        replayed: Episode = await self._asked(
            episode.task.id, episode.attempt, "replay", episode, swap
        )
        return replayed

    async def some(self) -> list[Member]:
        await self.start()
        return await self.workers.some()

    def lost(self, member: Member, error: LostError) -> None:
        self.workers.lost(member, error)

    async def _asked(self, task: str, attempt: int, method: str, *arguments: Any) -> Any:
        async def ask_member(member: Member) -> Any:
            actor = member.actor
            reference = getattr(actor, method).remote(*arguments)
            try:
                return await await_result(reference, actor)
            except asyncio.CancelledError:
                self.session.ray.cancel(reference)
                raise

        return await self._answered(task, attempt, ask_member)

    async def close(self) -> None:
        await self.workers.close()
