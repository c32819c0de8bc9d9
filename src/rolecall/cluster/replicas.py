"""Samples with several engines in processes of a cluster, and goes on when one of them is lost.

A request goes to the engine that has read most of its prompt: that of its episode's last turn,
else that of its task. No turn is recorded before its answer has come, so the requests of a lost
engine go to another one with the same seed. A lost engine is started again in its place; it gets
the newest weights of every policy, and samples once it says of some tokens what the others say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rolecall.cluster.endings import told_of, traces_of, with_cause, with_log
from rolecall.cluster.replica import Make, Place, Replica, kill
from rolecall.cluster.session import PARTS, RaySession
from rolecall.errors import RunEndingError, first_line
from rolecall.interfaces.engine import Completion, Request
from rolecall.interfaces.publisher import FileEngine
from rolecall.runtime import call_tree
from rolecall.types import Floats, Ids

AHEAD = 8  # completions that an engine may be asked for more than another, to find a prefix read
MOST_CALLS = 100_000  # of an actor at once
REMEMBERED = 100_000  # episodes whose engine is known
SAME = 1e-3  # nats that two engines may say apart of the same weights, in float32
SAME_ROUNDED = 0.2
ASK_S = 5.0  # in which a machine must say what an actor's last lines are
BUSY_S = 0.2  # until weights that are just being written are looked for again
notices = logging.getLogger("rolecall.notices")


class LostError(Exception):
    """The actor has ended, or cannot be reached."""

    def __init__(self, why: str, actor: Any = None) -> None:
        super().__init__(why)
        self.actor = actor


@dataclass(eq=False)
class Member:
    """One engine."""

    number: int
    actor: Any
    place: Place | None = None
    load: int = 0  # completions that it has been asked for
    serves: bool = False
    restarts: int = 0
    why: str = ""  # it is not started again


@dataclass
class Published:
    """The newest weights of a policy, and what engines say of some tokens with them."""

    version: int
    folder: Path
    probe: tuple[Ids, Ids, Floats] | None = None


@dataclass
class Homes:
    """Where episodes and tasks have been sampled, the newest ones."""

    found: OrderedDict[Any, Member] = field(default_factory=OrderedDict)

    def get(self, key: Any) -> Member | None:
        return self.found.get(key)

    def put(self, key: Any, member: Member) -> None:
        self.found[key] = member
        self.found.move_to_end(key)
        if len(self.found) > REMEMBERED:
            self.found.popitem(last=False)


class ReplicatedEngine(FileEngine):
    """The engines of policies that have one section and, where they have adapters, one base."""

    def __init__(
        self,
        session: RaySession,
        make: Make,
        names: list[str],
        *,
        number: int,
        can: Iterable[str],
        gpus: int = 0,
        rounded: bool = False,
    ) -> None:
        """The actors begin to start: `number` of them, each of which makes an engine.

        `gpus`: of each; `can`: what the engines are able to do; `rounded`: they compute
        in bfloat16.
        """
        self.session, self.section, self.names = session, session.section, names
        self.can = frozenset(can) - {"exact"}
        self._make, self._gpus = make, gpus
        self._largest_gap = SAME_ROUNDED if rounded else SAME
        self._published: dict[str, Published] = {}
        self._homes = Homes()
        self._asked: dict[str, Member] = {}  # by request id
        self._begun = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that is running now
        self._beginning: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # set when an engine has come or is given up
        self._tasks: set[asyncio.Task[None]] = set()
        self.members = [Member(place, self._actor(place)) for place in range(number)]

    def _actor(self, number: int, *, avoided: str = "") -> Any:
        made = self.session.ray.remote(
            max_restarts=0, max_concurrency=MOST_CALLS, concurrency_groups={"watch": 1},
            **self.session.options_of(number, gpus=self._gpus, avoided=avoided),
        )(Replica)  # fmt: skip
        name = f"engine-{'-'.join(self.names)}-{number}"
        return made.remote(name, self._make, self.session.scratch)

    async def start(self) -> None:
        """Wait until all have loaded their models.

        Raises what an engine raises that cannot start, and RunEndingError where its process ends.
        """
        if self._closed:
            raise RunEndingError("the engines of the cluster were closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # with the last one its tasks have ended
            self._loop, self._changed = loop, asyncio.Event()
            self._tasks.clear()
            self._beginning = None if self._begun else self._task(self._begin())
            self._task(self._watch())
            for member in self.members if self._begun else []:
                if not member.serves and not member.why:
                    self._task(self._restart(member, "it was being started again"))
        if self._beginning is not None:
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        await asyncio.gather(*map(self._first_start, self.members))
        self._begun = True

    async def _first_start(self, member: Member) -> None:
        try:
            await self._start(member)
        except LostError as error:
            if error.actor is None:  # another one would have no place either
                why = f"{self._named(member)} did not start: {error}"
                raise RunEndingError(why) from error
            await self._restart(member, str(error))
            if member.why:
                raise RunEndingError(member.why) from error
        member.serves = True

    async def _start(self, member: Member) -> None:
        """Raises what the engine raises, and LostError, without an actor where it has no place."""
        actor, within = member.actor, f"within {self.section.start_timeout_s:g} s"
        placed = actor.ping.options(concurrency_group="watch").remote()
        try:
            async with asyncio.timeout(self.section.start_timeout_s):
                member.place = await self._ask(member, "start")
        except TimeoutError:
            there, _ = self.session.ray.wait([placed], timeout=0)
            self._kill(member)
            if there or not self._gpus:  # without GPUs there is a place for all
                why = f"it did not start {within} (cluster.start_timeout_s)"
                raise LostError(why, actor) from None
            raise LostError(
                f"it had no place in the cluster, or its process did not come up, {within} "
                "(cluster.start_timeout_s)"
            ) from None

    async def generate(self, request: Request) -> list[Completion]:
        with call_tree.waiting():
            await self.start()
            while True:
                member = await self._chosen(request)
                self._asked[request.id] = member
                member.load += request.n
                try:
                    found: list[Completion] = await self._ask(member, "generate", request)
                    return found
                except LostError as error:
                    self._lost(member, error)
                except asyncio.CancelledError:
                    member.actor.cancel.remote(request.id)
                    raise
                finally:
                    member.load -= request.n
                    self._asked.pop(request.id, None)

    async def _chosen(self, request: Request) -> Member:
        await self._one_serves()
        serving = [member for member in self.members if member.serves]
        task, attempt, _ = request.order
        home = self._homes.get((task, attempt))
        if home is None or not home.serves:
            idlest = min(serving, key=lambda member: member.load)
            home = self._homes.get(task)
            if home is None or not home.serves or home.load > idlest.load + AHEAD:
                home = idlest
            self._homes.put(task, home)
        self._homes.put((task, attempt), home)
        return home

    async def _one_serves(self) -> None:
        """Raises RunEndingError where none will."""
        while not any(member.serves for member in self.members):
            if all(member.why for member in self.members):
                raise RunEndingError(self.members[0].why)
            self._changed.clear()
            await self._changed.wait()

    async def cancel(self, request_id: str) -> None:
        if member := self._asked.get(request_id):
            member.actor.cancel.remote(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        await self.start()
        while True:
            await self._one_serves()
            member = next(member for member in self.members if member.serves)
            try:
                said: Floats = await self._ask(member, "score", policy, prompt, tokens, temperature)
                return said
            except LostError as error:
                self._lost(member, error)

    async def score_each(self, policy: str, prompt: Ids, tokens: Ids) -> list[Floats]:
        """What every engine says at temperature 1; those that start later must say it too."""
        await self.start()
        said: dict[Any, Floats] = {}  # by actor
        while True:
            await self._one_serves()
            new = [m for m in self.members if m.serves and m.actor not in said]
            if not new:
                break
            said |= await self._each(new, "score", policy, prompt, tokens, 1.0)
        found = list(said.values())
        if policy in self._published:
            self._published[policy].probe = (prompt, tokens, found[0])
        return found

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        await self.start()
        self._published[policy] = Published(version, folder)
        serving = [member for member in self.members if member.serves]
        await asyncio.gather(*(self._give(m, policy, version, folder) for m in serving))

    async def _give(self, member: Member, policy: str, version: int, folder: Path) -> None:
        """A member that is lost meanwhile gets them when it is started again."""
        try:
            await self._load(member, policy, version, folder)
        except LostError as error:
            self._lost(member, error)

    async def _load(self, member: Member, policy: str, version: int, folder: Path) -> None:
        here = self.session.here
        if member.place is not None and member.place.node != here:
            there = self.session.scratch / f"{policy}-{member.number}"
            copied = self.session.copied(folder, source=here, target=member.place.node, to=there)
            await self._result(copied, member.actor)
            folder = there
        await self._ask(member, "load_files", policy, version, folder)

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

    async def close(self) -> None:
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members:
            if member.serves:
                try:
                    async with asyncio.timeout(self.section.heartbeat_s):
                        await self._ask(member, "close")
                except (LostError, TimeoutError):
                    pass
            member.serves = False
            self._kill(member)

    async def _all(self, method: str, *arguments: Any) -> None:
        await self.start()
        await self._each([m for m in self.members if m.serves], method, *arguments)

    async def _each(self, members: list[Member], method: str, *arguments: Any) -> dict[Any, Any]:
        """Their answers by actor; those that are lost meanwhile are started again."""
        answers: dict[Any, Any] = {}

        async def one(member: Member) -> None:
            actor = member.actor
            try:
                answers[actor] = await self._ask(member, method, *arguments)
            except LostError as error:
                self._lost(member, error)

        await asyncio.gather(*map(one, members))
        return answers

    async def _ask(self, member: Member, method: str, *arguments: Any) -> Any:
        """Raises what the engine raises, and LostError where its process has ended."""
        actor = member.actor
        return await self._result(getattr(actor, method).remote(*arguments), actor)

    async def _result(self, reference: Any, actor: Any = None) -> Any:
        errors = self.session.ray.exceptions
        try:
            return await asyncio.wrap_future(reference.future())
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise LostError(told_of(error), actor) from None

    def _lost(self, member: Member, error: LostError) -> None:
        """Start it again, unless that is under way or done: many requests lose one actor."""
        if member.serves and member.actor is error.actor and not self._closed:
            member.serves = False
            self._task(self._restart(member, str(error)))

    async def _restart(self, member: Member, why: str) -> None:
        while True:
            why = await self._ending(member, why)
            was_on = member.place.node if member.place else ""
            self._kill(member)
            if member.restarts >= self.section.restarts:
                member.why = (
                    f"{self._named(member)} was lost and has been started {member.restarts} times "
                    f"(cluster.restarts): {why}"
                )
                notices.warning("%s", member.why)
                break
            member.restarts += 1
            notices.warning("%s was lost and is started again: %s", self._named(member), why)
            await asyncio.sleep(member.restarts - 1)
            member.actor = self._actor(member.number, avoided=was_on)
            try:
                await self._start(member)
                await self._bring_up(member)
            except LostError as error:
                why = str(error)
                continue
            except Exception as error:  # whatever an engine raises that cannot be used
                why = first_line(error)
                continue
            member.serves = True
            break
        self._changed.set()

    async def _ending(self, member: Member, why: str) -> str:
        """Why it was lost, with what it has left on its machine."""
        if member.place is None:
            return why
        place = member.place
        asked = self.session.run_on(place.node, traces_of, place.log, place.oom_kills)
        try:
            async with asyncio.timeout(ASK_S):
                found = await self._result(asked)
        except (LostError, TimeoutError):
            found = None
        return with_log(with_cause(why, found), found)

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
        said = await self._ask(member, "score", policy, prompt, tokens, 1.0)
        gap = float(np.abs(said - wanted).max())
        if not gap <= self._largest_gap:
            raise LostError(f"its log-probs of {policy!r} are off by {gap:.3g} nats")

    async def _watch(self) -> None:
        """End engines that say nothing for too long."""
        while True:
            await asyncio.sleep(self.section.heartbeat_s / 2)
            await asyncio.gather(*(self._listen(m) for m in self.members if m.serves))

    async def _listen(self, member: Member) -> None:
        actor = member.actor
        ping = actor.ping.options(concurrency_group="watch")
        asked = asyncio.ensure_future(self._result(ping.remote(), actor))
        for _ in range(PARTS):
            done, _ = await asyncio.wait([asked], timeout=self.section.heartbeat_s / PARTS)
            if done:
                break
        else:
            asked.cancel()
            why = f"it said nothing for {self.section.heartbeat_s:g} s (cluster.heartbeat_s)"
            self._lost(member, LostError(why, actor))
            return
        try:
            asked.result()
        except LostError as error:
            self._lost(member, error)

    def _kill(self, member: Member) -> None:
        """Also where it is stopped and takes no message."""
        self.session.ray.kill(member.actor)
        if member.place is not None:
            self.session.run_on(member.place.node, kill, member.place.pid)
            member.place = None

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = call_tree.outside(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _named(self, member: Member) -> str:
        where = f" on {member.place.host}" if member.place else ""
        return f"engine {member.number} of {','.join(self.names)}{where}"
