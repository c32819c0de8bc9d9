"""Keeps values that belong to one event loop, such as connections and semaphores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class PerLoop(Generic[Value]):
    """Makes a value when an event loop first asks for it; closed loops lose theirs."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, Value] = {}

    def get(self) -> Value:
        """Return the value of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            self.pop_closed()
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> Value | None:
        """Remove and return the running loop's value, to be closed; None if it has none.

        `get` makes a new one.
        """
        return self._values.pop(asyncio.get_running_loop(), None)

    def pop_closed(self) -> list[Value]:
        """Remove and return the values of loops that are closed, which nobody else will close."""
        closed = [loop for loop in list(self._values) if loop.is_closed()]
        return [self._values.pop(loop) for loop in closed if loop in self._values]
