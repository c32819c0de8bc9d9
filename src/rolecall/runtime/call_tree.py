"""Gives the coroutines of an episode their paths, and counts those that are still running.

A path is where a call stands in the tree of an episode's calls: parent + ordinal among its
siblings, counted in the order the code makes them and never in the order they arrive:

    a = await team.solver(x)                    # (0,)
    await gather(team.left(a), team.right(a))   # tasks (1,) and (2,), calls (1, 0) and (2, 0)

It works because asyncio asks `task_factory` for every task that `gather`, `TaskGroup` and
`create_task` start, in the order of the code.

`IdleBarrier` consumes the starts, waits and ends of scopes, and produces `wait()`, which unblocks
when every live coroutine waits for an engine: the moment at which a deterministic engine may step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, TypeVar

from rolecall.config.user_code_location import waits_for_another
from rolecall.core.async_types import Work
from rolecall.core.errors import RunEndingError

Result = TypeVar("Result")
_current: ContextVar[Scope | None] = ContextVar("rolecall_scope", default=None)
_outside: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks only weakly

STILL_S = 5.0  # without movement, after which a circle of waits is looked for


class IdleBarrier:
    """Knows the coroutines that could still ask an engine for something by themselves."""

    def __init__(self) -> None:
        self._live: set[Scope] = set()
        self._zero = asyncio.Event()
        self._zero.set()

    @property
    def running(self) -> int:
        return len(self._live)

    def runs(self, scope: Scope) -> None:
        self._live.add(scope)
        self._zero.clear()

    def rests(self, scope: Scope) -> None:
        self._live.remove(scope)
        if not self._live:
            self._zero.set()

    async def wait(self) -> None:
        """Wait for all to end; raises RunEndingError if they wait for those that wait here."""
        while self._live:
            before = set(self._live)
            try:
                async with asyncio.timeout(STILL_S):
                    await self._zero.wait()
            except TimeoutError:
                if before == self._live and (location := self._circle()):
                    raise RunEndingError(
                        f"no episode can go on: {location} waits for an episode that itself waits "
                        "for an agent's answer, which comes when all episodes wait for one. Use "
                        "rolecall.Lock and rolecall.Semaphore there, which say that they wait"
                    ) from None

    def _circle(self) -> str:
        """Return where user code waits for other coroutines, if all that run do; "" otherwise."""
        places = [
            waits_for_another(scope.task) if scope.task is not None else "" for scope in self._live
        ]
        return places[0] if all(places) else ""


class Scope:
    """One coroutine (or one agent call) and the numbers of those it starts.

    A scope counts as running unless it waits for an engine or has live children: whoever awaits
    its children cannot act before they do.
    """

    __slots__ = ("_children", "_ended", "_next", "_parent", "_waiting", "barrier", "path", "task")

    def __init__(
        self, path: tuple[int, ...], *, barrier: IdleBarrier, parent: Scope | None = None
    ) -> None:
        self.path = path
        self.barrier = barrier
        self._next = 0
        self._children = 0
        self._waiting = False
        self._ended = False
        self._parent = parent
        self.task: asyncio.Task[Any] | None = None  # that runs it
        if parent is not None:
            parent._change(children=1)
        barrier.runs(self)

    def end(self) -> None:
        self._change(ended=True)
        if self._parent is not None:
            self._parent._change(children=-1)

    def next_path(self) -> tuple[int, ...]:
        path = (*self.path, self._next)
        self._next += 1
        return path

    def _counts(self) -> bool:
        return not (self._ended or self._waiting or self._children)

    def _change(
        self, *, children: int = 0, waiting: bool | None = None, ended: bool = False
    ) -> None:
        before = self._counts()
        self._children += children
        self._waiting = self._waiting if waiting is None else waiting
        self._ended = self._ended or ended
        if before and not self._counts():
            self.barrier.rests(self)
        elif self._counts() and not before:
            self.barrier.runs(self)


def current() -> Scope:
    scope = _current.get()
    assert scope is not None, "an agent was called outside of an episode"
    return scope


@contextmanager
def enter_scope(path: tuple[int, ...], *, barrier: IdleBarrier) -> Iterator[Scope]:
    """Run a block as a scope of its own, inside the current one if there is one."""
    scope = Scope(path, barrier=barrier, parent=_current.get())
    scope.task = asyncio.current_task()
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)
        scope.end()


@contextmanager
def waiting() -> Iterator[None]:
    """Mark the current scope as waiting for an engine. Outside of an episode it does nothing."""
    scope = _current.get()
    if scope is None:
        yield
        return
    scope._change(waiting=True)
    try:
        yield
    finally:
        scope._change(waiting=False)


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coroutine: Work[Result] | Generator[Any, None, Result],
    **options: Any,
) -> asyncio.Task[Result]:
    """Start tasks inside a scope as scopes of their own, for `loop.set_task_factory`."""
    own_context = options.pop("context", None)
    context = copy_context() if own_context is None else own_context
    parent = context.get(_current)
    if parent is None:
        return asyncio.Task(coroutine, loop=loop, context=context, **options)
    child = Scope(parent.next_path(), barrier=parent.barrier, parent=parent)
    context.run(_current.set, child)
    if isinstance(coroutine, Coroutine):
        coroutine = _without_exit(coroutine)
    task = child.task = asyncio.Task(coroutine, loop=loop, context=context, **options)
    task.add_done_callback(lambda _: child.end())
    return task


def outside(work: Work[Result]) -> asyncio.Task[Result]:
    """Start `work` as a task that belongs to no episode.

    It is for work that several episodes share, that may outlive the one that began it, or that
    runs code of libraries which start tasks as they like: the engine's steps, connections,
    requests to servers. Such a task and those it starts have no path, so the numbers of an
    episode's calls do not depend on them, and the barrier does not wait for them. Whoever awaits
    the task still counts as running. What the work raises is raised there, and asyncio logs what
    nobody awaited.
    """
    task = asyncio.get_running_loop().create_task(work, context=Context())
    _outside.add(task)
    task.add_done_callback(_outside.discard)
    return task


async def _without_exit(coroutine: Work[Result]) -> Result:
    """Await a coroutine, raising RuntimeError instead of SystemExit.

    A task's SystemExit would end the event loop, and with it all other episodes.
    """
    try:
        return await coroutine
    except SystemExit as error:
        raise RuntimeError(f"SystemExit({error.code!r}) was raised in a task") from error


class Lock(asyncio.Lock):
    """An `asyncio.Lock` for workflows, worlds and tools: who waits for it is known to wait."""

    async def acquire(self) -> Literal[True]:
        with waiting():
            return await super().acquire()


class Semaphore(asyncio.Semaphore):
    """An `asyncio.Semaphore` for workflows, worlds and tools: who waits for it is known to wait."""

    async def acquire(self) -> Literal[True]:
        with waiting():
            return await super().acquire()
