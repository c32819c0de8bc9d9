"""A tool that searches documents: a server, an index on disk, or the web through a provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.retrieval.base import EmptyQueryError
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.dialects import Dialect
from rolecall.retrieval.opening import open_client
from rolecall.retrieval.rendering import render
from rolecall.retrieval.web import Provider, WebSearch
from rolecall.tools.functions import tool


class Search:
    """Tool `search`: the documents that match a query best."""

    def __init__(
        self,
        url: str | list[str] | None = None,
        dialect: Dialect | None = None,
        corpus: str | None = None,
        index: str | None = None,
        model: str | None = None,
        provider: Provider | None = None,
        key_env: str | None = None,
        topk: int = 3,
        deadline_s: float = 30.0,
    ) -> None:
        """url: server to search, or several that are asked in turn.
        dialect: protocol of the servers; by default batch.
        corpus: file of passages from which the index is built if it is not there.
        index: folder of an index, or a file that faiss made of the lines of `corpus`.
        model: sentence-transformers model, for an index of vectors instead of BM25.
        provider: provider of web search; `searxng` needs the `url` of a server, the others a key.
        key_env: environment variable with the provider's key; by default SERPER_API_KEY,
            TAVILY_API_KEY or BRAVE_API_KEY.
        topk: documents of a search.
        deadline_s: most seconds of a search.
        """
        if topk < 1:
            raise ValueError(f"topk must be at least 1 (it is {topk})")
        self.topk = topk
        if provider is not None:
            others = {"dialect": dialect, "corpus": corpus, "index": index, "model": model}
            if unused := [name for name, value in others.items() if value is not None]:
                raise ValueError(f"{unused[0]} has no effect with provider; remove it")
            if isinstance(url, list):
                raise ValueError("url: a provider has one address; write one")
            source = WebSearch(provider, url=url, key_env=key_env, deadline_s=deadline_s)
            self.client = SearchClient(source, deadline_s=deadline_s, remedy=source.remedy)
            return
        if key_env is not None:
            raise ValueError("key_env has no effect without provider; remove it")
        self.client = open_client(
            url=url, dialect=dialect, corpus=corpus, index=index, model=model, deadline_s=deadline_s
        )

    async def check(self) -> None:
        """Check the search service; raises SearchDownError if nobody answers."""
        await self.client.check()

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        yield [search_tool(self.client, topk=self.topk)]


def search_tool(client: SearchClient, *, topk: int) -> Tool:
    @tool(ends_itself=True)
    async def search(query: str) -> str:
        """Documents about a query."""
        try:
            return render(await client.query(query, topk=topk))
        except EmptyQueryError as error:
            raise ToolError(str(error)) from error

    return search
