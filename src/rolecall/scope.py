"""Coroutines of an episode in, their paths out; and a count of those that are still running.

A path is where a call stands in the tree of an episode's calls: parent + ordinal among its
siblings, counted in the order the code makes them and never in the order they arrive (D9):

    a = await team.solver(x)                    # (0,)
    await gather(team.left(a), team.right(a))   # tasks (1,) and (2,), calls (1, 0) and (2, 0)

It works because asyncio asks `task_factory` for every task that `gather`, `TaskGroup` and
`create_task` start, in the order of the code.

`Quiet` consumes the starts, waits and ends of scopes, and produces `wait()`, which unblocks when
every live coroutine waits for an engine: the moment at which a deterministic engine may step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

_current: ContextVar[Scope | None] = ContextVar("rolecall_scope", default=None)


class Quiet:
    """Counts the coroutines that could still ask an engine for something by themselves."""

    def __init__(self) -> None:
        self.running = 0
        self._zero = asyncio.Event()
        self._zero.set()

    def add(self, change: int) -> None:
        self.running += change
        assert self.running >= 0, "a coroutine ended twice"
        if self.running:
            self._zero.clear()
        else:
            self._zero.set()

    async def wait(self) -> None:
        while self.running:
            await self._zero.wait()


class Scope:
    """One coroutine (or one agent call) and the numbers of those it starts.

    A scope counts as running unless it waits for an engine or has live children: whoever awaits
    its children cannot act before they do.
    """

    __slots__ = ("_children", "_ended", "_next", "_parent", "_waiting", "path", "quiet")

    def __init__(self, path: tuple[int, ...], *, quiet: Quiet, parent: Scope | None = None) -> None:
        self.path = path
        self.quiet = quiet
        self._next = 0
        self._children = 0
        self._waiting = False
        self._ended = False
        self._parent = parent
        if parent is not None:
            parent._change(children=1)
        quiet.add(1)

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
        self.quiet.add(int(self._counts()) - int(before))


def current() -> Scope:
    scope = _current.get()
    assert scope is not None, "an agent was called outside of an episode"
    return scope


@contextmanager
def entered(path: tuple[int, ...], *, quiet: Quiet) -> Iterator[Scope]:
    """Run a block as a scope of its own, inside the current one if there is one."""
    scope = Scope(path, quiet=quiet, parent=_current.get())
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
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    **options: Any,
) -> asyncio.Task[Any]:
    """For `loop.set_task_factory`: tasks started inside a scope become scopes of their own."""
    given = options.pop("context", None)
    context = copy_context() if given is None else given
    parent = context.get(_current)
    if parent is None:
        return asyncio.Task(coroutine, loop=loop, context=context, **options)
    child = Scope(parent.next_path(), quiet=parent.quiet, parent=parent)
    context.run(_current.set, child)
    if isinstance(coroutine, Coroutine):
        coroutine = _without_exit(coroutine)
    task = asyncio.Task(coroutine, loop=loop, context=context, **options)
    task.add_done_callback(lambda _: child.end())
    return task


async def _without_exit(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A task's SystemExit would end the event loop, and with it all other episodes."""
    try:
        return await coroutine
    except SystemExit as error:
        raise RuntimeError(f"SystemExit({error.code!r}) was raised in a task") from error
