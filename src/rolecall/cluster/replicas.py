"""Samples with several engines in processes of a cluster, all of which have the newest weights.

Each gives answers once it says of some tokens what the learner says of them. One that says
something else is started again, and what it has sampled meanwhile is lost with it. An engine that
is started again gets the newest weights of every policy first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolecall.cluster.copying import fetch_folder
from rolecall.cluster.endings import describe_death
from rolecall.cluster.pool import Seat, place_actor
from rolecall.cluster.replica import Make, Replica
from rolecall.cluster.routing import RoutedEngine
from rolecall.cluster.session import RaySession
from rolecall.cluster.supervised_actors import ALWAYS, LostError, Member, Members, ask, await_result
from rolecall.cluster.transfers import DirectTransfers
from rolecall.core.interfaces.learner import Written
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.interfaces.weights import Probe, PublishError, WeightFiles, WeightSource
from rolecall.core.types import Floats
from rolecall.models.weight_transfer import Direct
from rolecall.runtime.scratch import shared_folder

if TYPE_CHECKING:
    from ray.actor import ActorHandle


RETRY_S = 0.5


@dataclass
class Published:
    """The newest weights of a policy."""

    number: int  # of publications
    version: int
    source: WeightSource
    written: Written | None = None  # files of them, where they have been needed
    known: bool = False  # what they are is proven or trusted, where an engine has them
    probe: Probe | None = None  # by which that is proven

    @property
    def state(self) -> tuple[int, bool]:
        return self.number, self.known


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
        direct: Direct | None = None,
    ) -> None:
        """Begin to start the actors, each of which makes an engine.

        `seats`: the GPUs of each, or None where it computes on any machine's processors; `can`:
        what the engines are able to do; `direct`: weights come from ranks, not in files.
        """
        super().__init__()
        self.session, self.names = session, names
        self.can = frozenset(can) - {"exact"}
        self._make, self._seats = make, seats
        self._sending = None if direct is None else DirectTransfers(session, direct, self.lost)
        self._numbers = itertools.count()
        self._published: dict[str, Published] = {}
        self._writing: dict[str, asyncio.Event] = {}  # policies whose weights are written or sent
        self.watchers: list[Callable[[], None]] = []  # are told when an engine comes or goes
        self.engines = Members(
            session,
            f"engine {{}} of {','.join(names)}",
            len(seats),
            self._actor,
            bring_up=self._bring_up,
            changed=self._tell,
        )

    def _actor(self, number: int, avoided: str) -> ActorHandle:
        options, gpus = place_actor(self.session, self._seats[number], number, avoided=avoided)
        name = f"engine-{'-'.join(self.names)}-{number}"
        remote_class = self.session.ray.remote(**ALWAYS, **options)(Replica)
        finishes = self.session.section.in_flight == "finish"
        return remote_class.remote(name, self._make, self.session.scratch, gpus, finishes=finishes)

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
        await self.publish(policy, version, WeightFiles(folder))

    async def publish(self, policy: str, version: int, source: WeightSource) -> None:
        """Load weights on whichever machine the engines are.

        What they sample of a policy with weights that are new they give away once these are proven
        or trusted.
        """
        await self.start()
        newest, got = Published(next(self._numbers), version, source), set[Any]()
        async with self._being_written(policy):
            if self._sending is not None and source.can_send:
                got = await self._sending.send(policy, version, source.send, self.engines.serving)
            self._published[policy] = newest
        others = [member for member in self.engines.serving if member.actor not in got]
        if others or not got:
            await self._write(policy, newest)
        await asyncio.gather(*(self._give(member, policy, newest) for member in others))

    @asynccontextmanager
    async def _being_written(self, policy: str) -> AsyncIterator[None]:
        while policy in self._writing:
            await self._writing[policy].wait()
        ended = self._writing[policy] = asyncio.Event()
        try:
            yield
        finally:
            del self._writing[policy]
            ended.set()

    async def _write(self, policy: str, newest: Published) -> None:
        """Write the policy's files, if the learner has not gone on since."""
        async with self._being_written(policy):
            if newest.written is None:
                newest.written = await newest.source.files_anywhere()

    async def prove(self, probe: Probe) -> None:
        """Let each that says what the learner says give its answers, and start the others again.

        Engines that start from now on do it by themselves. Raises PublishError where all say
        something else: then it is not one engine's fault.
        """
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
        await self.engines.call_each(await self.some(), "serve", policy)

    async def _prove(self, member: Member, probe: Probe) -> None:
        """Check a member's log-probs against the probe's; raises PublishError if they differ."""
        first, others = probe.tokens[:1], probe.tokens[1:]
        logprobs: Floats = await ask(member, "score", probe.policy, first, others, 1.0)
        probe.check(logprobs)
        await ask(member, "serve", probe.policy)

    async def _give(self, member: Member, policy: str, newest: Published) -> None:
        """Load the newest weights into a member.

        A member that is lost meanwhile gets them when it starts again.
        """
        try:
            await self._load(member, policy, newest)
        except LostError as error:
            self.lost(member, error)

    async def _load(self, member: Member, policy: str, newest: Published) -> None:
        """Load weights from files into a member; raises LostError if a machine is gone."""
        assert newest.written is not None, "they are in files"
        folder, source = newest.written.folder, newest.written.machine or self.session.here
        if member.place is not None and member.place.node != source:
            there = partial(_weights_folder, self.session.scratch.name, f"{policy}.{member.number}")
            copied = self.session.run_on(member.place.node, fetch_folder, folder, source, there)
            try:
                folder = await await_result(copied, member.actor)
            except self.session.ray.exceptions.RayError as error:
                reason = describe_death(error)
                why = f"weights of {policy!r} did not come from their machine: {reason}"
                raise LostError(why, member.actor) from error
        await ask(member, "load_files", policy, newest.version, folder)

    async def _bring_up(self, member: Member) -> None:
        """Give it the newest weights, and prove them where they are known.

        Raises PublishError where it says something else with them.
        """
        has: dict[str, tuple[int, bool]] = {}  # what it has been given
        while missing := [p for p, newest in self._published.items() if has.get(p) != newest.state]:
            policy = missing[0]
            if policy in self._writing:
                await self._writing[policy].wait()
                continue
            newest = self._published[policy]
            if newest.written is None:
                await self._write(policy, newest)
            if newest.written is None:  # the learner updates them, so the next ones come soon
                await asyncio.sleep(RETRY_S)
                continue
            state, proven, probe = newest.state, newest.known, newest.probe
            try:
                await self._load(member, policy, newest)
                if probe is not None:
                    await self._prove(member, probe)
                elif proven:
                    await ask(member, "serve", policy)
            except Exception:
                if newest is self._published[policy] and policy not in self._writing:
                    raise
                continue  # others have been written meanwhile, or are being
            has[policy] = state

    async def pause(self, *, keep: bool) -> None:
        await self._all("pause", keep)

    async def resume(self) -> None:
        await self._all("resume")

    async def reset_prefix_cache(self) -> None:
        await self._all("reset_prefix_cache")

    async def sleep(self, *, weights: bool) -> None:
        await self._all("sleep", weights)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        await self._all("wake", part)

    async def check(self) -> None:
        await self._all("check")

    async def _all(self, method: str, *arguments: Any) -> None:
        await self.start()
        await self.engines.call_each(self.engines.serving, method, *arguments)

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.close()
        await self.engines.close()


def _weights_folder(scratch: str, name: str, size: int) -> Path:
    """Return a folder on an engine's machine, for weights that it reads."""
    return shared_folder(scratch, name, room=size)
