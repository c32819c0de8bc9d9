"""Samples with several engines in processes of a cluster, all of which have the newest weights.

Each gives answers once it says of some tokens what the learner says of them. One that says
something else is started again, and what it has sampled meanwhile is lost with it. An engine that
is started again gets the newest weights of every policy first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rolecall.cluster.members import ALWAYS, LostError, Member, Members, ask, result_of
from rolecall.cluster.pool import Seat, placed
from rolecall.cluster.replica import Make, Replica
from rolecall.cluster.routing import RoutedEngine
from rolecall.cluster.session import RaySession
from rolecall.interfaces.publisher import FileEngine, Probe, PublishError
from rolecall.types import Floats

BUSY_S = 0.2  # until weights that are just being written are looked for again


@dataclass
class Published:
    """The newest weights of a policy."""

    version: int
    folder: Path
    known: bool = False  # what they are is proven or trusted, where an engine has them
    probe: Probe | None = None  # by which that is proven


class ReplicatedEngine(RoutedEngine, FileEngine):
    """The engines of policies that have one section and, where they have adapters, one base."""

    def __init__(
        self,
        session: RaySession,
        make: Make,
        names: list[str],
        *,
        seats: Sequence[Seat | None],
        can: Iterable[str],
    ) -> None:
        """The actors begin to start, each of which makes an engine.

        `seats`: the GPUs of each, or None where it computes on any machine's processors; `can`:
        what the engines are able to do.
        """
        super().__init__()
        self.session, self.names = session, names
        self.can = frozenset(can) - {"exact"}
        self._make, self._seats = make, seats
        self._published: dict[str, Published] = {}
        self.watchers: list[Callable[[], None]] = []  # are told when an engine comes or goes
        self.engines = Members(
            session,
            f"engine {{}} of {','.join(names)}",
            len(seats),
            self._actor,
            bring_up=self._bring_up,
            changed=self._tell,
        )

    def _actor(self, number: int, avoided: str) -> Any:
        options, gpus = placed(self.session, self._seats[number], number, avoided=avoided)
        name = f"engine-{'-'.join(self.names)}-{number}"
        made = self.session.ray.remote(**ALWAYS, **options)(Replica)
        finishes = self.session.section.in_flight == "finish"
        return made.remote(name, self._make, self.session.scratch, gpus, finishes=finishes)

    def _tell(self) -> None:
        for tell in self.watchers:
            tell()

    @property
    def members(self) -> list[Member]:
        return self.engines.all

    async def start(self) -> None:
        """Wait until all have loaded their models.

        Raises what an engine raises that cannot start, and RunEndingError where its process ends.
        """
        await self.engines.start()

    async def some(self) -> list[Member]:
        await self.start()
        return await self.engines.some()

    def lost(self, member: Member, error: LostError) -> None:
        self.engines.lost(member, error)

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        await self.start()
        self._published[policy] = Published(version, folder)
        serving = self.engines.serving
        await asyncio.gather(*(self._give(m, policy, version, folder) for m in serving))

    async def prove(self, probe: Probe) -> None:
        """As `Replicas` says. Engines that start from now on do it by themselves."""
        newest = self._published[probe.policy]
        newest.known, newest.probe = True, probe
        members = await self.some()
        wrong: dict[Member, PublishError] = {}

        async def one(member: Member) -> None:
            try:
                await self._prove(member, probe)
            except LostError as error:
                self.lost(member, error)
            except PublishError as error:
                wrong[member] = error

        actors = {member: member.actor for member in members}
        await asyncio.gather(*map(one, members))
        if len(wrong) == len(members):
            raise next(iter(wrong.values()))
        for member, error in wrong.items():
            self.lost(member, LostError(str(error), actors[member]))

    async def trust(self, policy: str) -> None:
        self._published[policy].known = True
        await self.engines.each(await self.some(), "serve", policy)

    async def _prove(self, member: Member, probe: Probe) -> None:
        """Raises PublishError where it says something else."""
        first, others = probe.tokens[:1], probe.tokens[1:]
        said: Floats = await ask(member, "score", probe.policy, first, others, 1.0)
        probe.check(said)
        await ask(member, "serve", probe.policy)

    async def _give(self, member: Member, policy: str, version: int, folder: Path) -> None:
        """A member that is lost meanwhile gets them when it is started again."""
        try:
            await self._load(member, policy, version, folder)
        except LostError as error:
            self.lost(member, error)

    async def _load(self, member: Member, policy: str, version: int, folder: Path) -> None:
        here = self.session.here
        if member.place is not None and member.place.node != here:
            there = self.session.scratch / f"{policy}-{member.number}"
            copied = self.session.copied(folder, source=here, target=member.place.node, to=there)
            await result_of(copied, member.actor)
            folder = there
        await ask(member, "load_files", policy, version, folder)

    async def _bring_up(self, member: Member) -> None:
        """Give it the newest weights, and prove them where they are known.

        Raises PublishError where it says something else with them.
        """
        has: dict[str, Published] = {}  # copies of what it has been given
        while missing := [p for p, newest in self._published.items() if has.get(p) != newest]:
            policy, newest = missing[0], self._published[missing[0]]
            given = replace(newest)
            try:
                await self._load(member, policy, newest.version, newest.folder)
                if given.probe is not None:
                    await self._prove(member, given.probe)
                elif given.known:
                    await ask(member, "serve", policy)
            except Exception:
                if newest is self._published[policy] and newest.folder.is_dir():
                    raise
                await asyncio.sleep(BUSY_S)  # others are just being written
                continue
            has[policy] = given

    async def pause(self, *, keep: bool) -> None:
        await self._all("pause", keep)

    async def resume(self) -> None:
        await self._all("resume")

    async def forget(self) -> None:
        await self._all("forget")

    async def sleep(self, *, weights: bool) -> None:
        await self._all("sleep", weights)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        await self._all("wake", part)

    async def check(self) -> None:
        await self._all("check")

    async def _all(self, method: str, *arguments: Any) -> None:
        await self.start()
        await self.engines.each(self.engines.serving, method, *arguments)

    async def close(self) -> None:
        await self.engines.close()
