"""Samples with several engines in processes of a cluster, all of which have the newest weights.

An engine that is started again gets the newest weights of every policy, and samples once it says
of some tokens what the others say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rolecall.cluster.members import ALWAYS, LostError, Member, Members, ask, result_of
from rolecall.cluster.pool import Seat, placed
from rolecall.cluster.replica import Make, Replica
from rolecall.cluster.routing import RoutedEngine
from rolecall.cluster.session import RaySession
from rolecall.interfaces.publisher import FileEngine
from rolecall.types import Floats, Ids

SAME = 1e-3  # nats that two engines may say apart of the same weights, in float32
SAME_ROUNDED = 0.2
BUSY_S = 0.2  # until weights that are just being written are looked for again


@dataclass
class Published:
    """The newest weights of a policy, and what engines say of some tokens with them."""

    version: int
    folder: Path
    probe: tuple[Ids, Ids, Floats] | None = None


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
        rounded: bool = False,
    ) -> None:
        """The actors begin to start, each of which makes an engine.

        `seats`: the GPUs of each, or None where it computes on any machine's processors; `can`:
        what the engines are able to do; `rounded`: they compute in bfloat16.
        """
        super().__init__()
        self.session, self.names = session, names
        self.can = frozenset(can) - {"exact"}
        self._make, self._seats = make, seats
        self._largest_gap = SAME_ROUNDED if rounded else SAME
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

    async def score_each(self, policy: str, prompt: Ids, tokens: Ids) -> list[Floats]:
        """What every engine says at temperature 1; those that start later must say it too."""
        said: dict[Any, Floats] = {}  # by actor
        while new := [member for member in await self.some() if member.actor not in said]:
            said |= await self.engines.each(new, "score", policy, prompt, tokens, 1.0)
        found = list(said.values())
        if policy in self._published:
            self._published[policy].probe = (prompt, tokens, found[0])
        return found

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        await self.start()
        self._published[policy] = Published(version, folder)
        serving = self.engines.serving
        await asyncio.gather(*(self._give(m, policy, version, folder) for m in serving))

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
        """Give it the newest weights. Raises LostError where it says something else with them."""
        has: dict[str, Published] = {}
        while missing := [p for p, newest in self._published.items() if has.get(p) is not newest]:
            policy, newest = missing[0], self._published[missing[0]]
            try:
                await self._load(member, policy, newest.version, newest.folder)
                if newest.probe is not None:
                    await self._compare(member, policy, *newest.probe)
            except Exception:
                if newest is self._published[policy] and newest.folder.is_dir():
                    raise
                await asyncio.sleep(BUSY_S)  # others are just being written
                continue
            has[policy] = newest

    async def _compare(
        self, member: Member, policy: str, prompt: Ids, tokens: Ids, wanted: Floats
    ) -> None:
        said = await ask(member, "score", policy, prompt, tokens, 1.0)
        gap = float(np.abs(said - wanted).max())
        if not gap <= self._largest_gap:
            raise LostError(f"its log-probs of {policy!r} are off by {gap:.3g} nats")

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
