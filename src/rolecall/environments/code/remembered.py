"""Remembers the results of work by key, so that it is done once for all who ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from rolecall.runtime.call_tree import outside

Result = TypeVar("Result")
MOST = 4_096  # results kept; the oldest goes first


class Remembered:
    """Attempts of a group often write the same program: it is run against the same tests once.

    Work that raises is not remembered. A caller that is cancelled does not cancel it for others.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        if key not in self._known:
            while len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            # The episode that asks first may end before the others that wait for it.
            self._known[key] = outside(self._do(key, work))
        result: Result = await asyncio.shield(self._known[key])
        return result

    async def _do(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        except BaseException:
            self._known.pop(key, None)
            raise
