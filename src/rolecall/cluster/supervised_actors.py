"""Keeps actors of one kind alive: starts them, listens to them, and starts again what is lost.

Each of them has a place among its like. When an actor ends, or is silent for too long, another one
is started in its place, brought to the state of the others, and serves from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolecall.cluster.actor_process import Place
from rolecall.cluster.endings import add_cause, add_log, describe_death, read_traces
from rolecall.cluster.session import PARTS, RaySession
from rolecall.core.async_types import Work
from rolecall.core.errors import RunEndingError, first_line
from rolecall.core.json_types import Options
from rolecall.runtime import call_tree

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


ASK_S = 5.0  # in which a machine must say what an actor's last lines are
MOST_CALLS = 100_000  # of an actor at once
notices = logging.getLogger("rolecall.notices")


class LostError(Exception):
    """The actor has ended, or cannot be reached."""

    def __init__(self, why: str, actor: ActorHandle | None = None) -> None:
        super().__init__(why)
        self.actor = actor


@dataclass(eq=False)
class Member:
    """One place, and the actor that has it now."""

    number: int
    actor: ActorHandle
    place: Place | None = None
    load: int = 0  # what it has been asked for and has not given yet
    serves: bool = False
    restarts: int = 0
    why: str = ""  # it is not started again


async def await_result(reference: ObjectRef, actor: ActorHandle | None = None) -> Any:
    """Return an actor's result.

    Raises what the actor's method raises, and LostError if its process has ended.
    """
    from ray import exceptions

    try:
        return await asyncio.wrap_future(reference.future())
    except exceptions.RayTaskError as error:
        raise error.cause from None
    except exceptions.RayError as error:
        raise LostError(describe_death(error), actor) from None


async def ask(member: Member, method: str, *arguments: Any) -> Any:
    """Return the answer of a member's actor; raises what `await_result` raises."""
    actor = member.actor
    return await await_result(getattr(actor, method).remote(*arguments), actor)


# Of an actor that `Members` keeps alive, beside where it is.
ALWAYS: Options = {
    "max_restarts": 0,
    "max_concurrency": MOST_CALLS,
    "concurrency_groups": {"watch": 1},
}


class Members:
    """The actors of one kind, from the first `start` on.

    Their class has `start`, which returns a Place, `ping` in a thread of its own, `until_the_end`,
    which never answers, and `close`.
    """

    def __init__(
        self,
        session: RaySession,
        kind: str,
        number: int,
        make: Callable[[int, str], ActorHandle],
        *,
        bring_up: Callable[[Member], Awaitable[None]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to start the actors.

        `kind`: what messages call one of them, "engine {} of a,b"; `make`: an actor, of its number
        and of the machine that it should avoid; `bring_up`: gives a new one the state of the
        others, and raises LostError where it cannot have it; `changed`: is called when one has
        come, has been lost or is given up.
        """
        self.session, self.section, self.kind = session, session.section, kind
        self._make, self._bring_up, self._tell = make, bring_up, changed
        self._begun = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that is running now
        self._beginning: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.all = [Member(index, make(index, "")) for index in range(number)]

    @property
    def serving(self) -> list[Member]:
        return [member for member in self.all if member.serves]

    async def start(self) -> None:
        """Wait until all serve.

        Raises what an actor raises that cannot start, and RunEndingError where its process ends.
        """
        if self._closed:
            raise RunEndingError("the actors of the cluster were closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # with the last one its tasks have ended
            self._loop, self._changed = loop, asyncio.Event()
            self._tasks.clear()
            self._beginning = None if self._begun else self._task(self._begin())
            self._task(self._watch())
            for member in self.all if self._begun else []:
                if member.serves:
                    self._task(self._until_its_end(member))
                elif not member.why:
                    self._task(self._restart(member, "it was being started again"))
        if self._beginning is not None:
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        await asyncio.gather(*map(self._first_start, self.all))
        self._begun = True
        self._note()

    async def _first_start(self, member: Member) -> None:
        try:
            await self._start(member)
            await self._bring_up(member)
        except LostError as error:
            await self._restart(member, str(error))
            if member.why:
                raise RunEndingError(member.why) from error
        else:
            self._serves(member)

    async def _start(self, member: Member) -> None:
        """Start a member; raises what its actor raises, and LostError.

        Its machine has room for it: a member that needs a GPU got one before (`cluster/pool.py`).
        """
        actor = member.actor
        try:
            async with asyncio.timeout(self.section.start_timeout_s):
                member.place = await ask(member, "start")
        except TimeoutError:
            self._kill(member)
            seconds = f"{self.section.start_timeout_s:g} s (cluster.start_timeout_s)"
            raise LostError(f"it did not start within {seconds}", actor) from None

    async def some(self) -> list[Member]:
        """Return those that serve, once there is one. Raises RunEndingError where none will."""
        while not (serving := self.serving):
            if all(member.why for member in self.all):
                raise RunEndingError(self.all[0].why)
            self._changed.clear()
            await self._changed.wait()
        return serving

    async def call_each(
        self, members: list[Member], method: str, *arguments: Any
    ) -> dict[ActorHandle, Any]:
        """Return the answers by actor; members that are lost meanwhile are started again."""
        answers: dict[ActorHandle, Any] = {}

        async def one(member: Member) -> None:
            actor = member.actor
            try:
                answers[actor] = await ask(member, method, *arguments)
            except LostError as error:
                self.lost(member, error)

        await asyncio.gather(*map(one, members))
        return answers

    def lost(self, member: Member, error: LostError) -> None:
        """Start it again, unless that is under way or done: many requests lose one actor."""
        if member.serves and member.actor is error.actor and not self._closed:
            member.serves = False
            self._task(self._restart(member, str(error)))
            self._note()

    async def _restart(self, member: Member, why: str) -> None:
        while True:
            why = await self._ending(member, why)
            name, was_on = self._named(member), member.place.node if member.place else ""
            self._kill(member)
            if member.restarts >= self.section.restarts:
                member.why = (
                    f"{name} was lost and has been started {member.restarts} times "
                    f"(cluster.restarts): {why}"
                )
                notices.warning("%s", member.why)
                self._note()
                return
            member.restarts += 1
            notices.warning("%s was lost and is started again: %s", name, why)
            await asyncio.sleep(member.restarts - 1)
            try:
                member.actor = await asyncio.to_thread(self._make, member.number, was_on)
                await self._start(member)
                await self._bring_up(member)
            except LostError as error:
                why = str(error)
                continue
            except Exception as error:  # whatever an actor raises that cannot be used
                why = first_line(error)
                continue
            self._serves(member)
            self._note()
            return

    def _serves(self, member: Member) -> None:
        member.serves = True
        self._task(self._until_its_end(member))

    def _note(self) -> None:
        self._changed.set()
        self._tell()

    async def _ending(self, member: Member, why: str) -> str:
        """Return why it was lost, with what it has left on its machine."""
        if member.place is None:
            return why
        process = member.place
        request = self.session.run_on(process.node, read_traces, process.log, process.oom_kills)
        try:
            async with asyncio.timeout(ASK_S):
                traces = await await_result(request)
        except (LostError, TimeoutError):
            traces = None
        return add_log(add_cause(why, traces), traces)

    async def _until_its_end(self, member: Member) -> None:
        """Learn of its end from Ray, also where nobody asks it for anything."""
        try:
            await ask(member, "until_the_end")
        except LostError as error:
            self.lost(member, error)

    async def _watch(self) -> None:
        """End those that say nothing for too long."""
        while True:
            await asyncio.sleep(self.section.heartbeat_s / 2)
            await asyncio.gather(*map(self._listen, self.serving))

    async def _listen(self, member: Member) -> None:
        actor = member.actor
        ping: Any = actor.ping.options(concurrency_group="watch")
        answer = asyncio.ensure_future(await_result(ping.remote(), actor))
        for _ in range(PARTS):
            done, _ = await asyncio.wait([answer], timeout=self.section.heartbeat_s / PARTS)
            if done:
                break
        else:
            answer.cancel()
            why = f"it said nothing for {self.section.heartbeat_s:g} s (cluster.heartbeat_s)"
            self.lost(member, LostError(why, actor))
            return
        try:
            answer.result()
        except LostError as error:
            self.lost(member, error)

    async def close(self) -> None:
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, self.all))

    async def _end(self, member: Member) -> None:
        if member.serves:
            try:
                async with asyncio.timeout(self.section.heartbeat_s):
                    await ask(member, "close")
            except (LostError, TimeoutError):
                pass  # it is killed
        member.serves = False
        self._kill(member)

    def _kill(self, member: Member) -> None:
        """Kill the actor, also where it is stopped and takes no message."""
        self.session.ray.kill(member.actor)
        if member.place is not None:
            self.session.kill(member.place.node, member.place.pid)
            member.place = None

    def _task(self, work: Work[None]) -> asyncio.Task[None]:
        task = call_tree.outside(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _named(self, member: Member) -> str:
        where = f" on {member.place.host}" if member.place else ""
        return f"{self.kind.format(member.number)}{where}"
