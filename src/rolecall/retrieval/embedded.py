"""Runs a blocking retriever in a thread, so that the event loop stays free."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from rolecall.retrieval.base import Hit, Retriever, SearchError


class Embedded:
    """A retriever of this process, in a thread of its own."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever, self.identity = retriever, retriever.identity
        self.largest, self.at_once, self.trouble = 64, 1, ""
        self._thread: ThreadPoolExecutor | None = None

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Search in a thread.

        Raises SearchError for whatever the index, its model or the disk raised.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self.retriever.search, queries, topk)
        except Exception as error:  # a query is only text: whatever fails, it is not its fault
            self.trouble = f"{type(error).__name__}: {error}"
            raise SearchError(self.trouble) from error

    async def close(self) -> None:
        """End the thread; a later search starts a new one."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
