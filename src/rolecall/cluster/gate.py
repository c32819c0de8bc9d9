"""Lets requests of a policy finish with the weights they began with, before new ones are taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Keeps requests of a policy out while its weights wait for those inside, and are replaced."""

    def __init__(self) -> None:
        self._inside: Counter[str] = Counter()
        self._closed: dict[str, asyncio.Event] = {}  # set when it opens
        self._empty: dict[str, asyncio.Event] = {}  # set when nobody is inside

    @asynccontextmanager
    async def request(self, policy: str) -> AsyncIterator[None]:
        while policy in self._closed:
            await self._closed[policy].wait()
        self._inside[policy] += 1
        try:
            yield
        finally:
            self._inside[policy] -= 1
            if not self._inside[policy] and policy in self._empty:
                self._empty[policy].set()

    @asynccontextmanager
    async def update(self, policy: str) -> AsyncIterator[None]:
        """Close the gate for one update at a time."""
        while policy in self._closed:
            await self._closed[policy].wait()
        opens = self._closed[policy] = asyncio.Event()
        empty = self._empty[policy] = asyncio.Event()
        try:
            if self._inside[policy]:
                await empty.wait()
            yield
        finally:
            del self._closed[policy], self._empty[policy]
            opens.set()
