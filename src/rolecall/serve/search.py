"""Serves a corpus and its index to clients of Search-R1 and Dr. MAS.

`POST /retrieve` takes `queries` or `query`, `topk` and `return_scores`; `GET /health` tells which
index answers. With a reranker `/retrieve` takes `topk_retrieval` and `topk_rerank`, too, and
`POST /rerank` orders documents that the client has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs, optional
from rolecall.retrieval.base import Hit, Passage, Retriever, SearchError
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.corpus import join_contents, read_passage, split_contents
from rolecall.retrieval.dialects import RERANKED
from rolecall.retrieval.embedded import Embedded
from rolecall.retrieval.opening import open_index
from rolecall.retrieval.reranking import Reranker, load_reranker
from rolecall.serve.binding import answer_at, check_address
from rolecall.serve.guard import Guard, Rules, is_local
from rolecall.serve.request_body import read_body

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse

RULES = Rules(open_paths=("/health",))
RETRY_AFTER_S = "1"
MOST_WAITING = 256  # requests beside those whose queries are under way


class Retrieve(BaseModel):
    """The body of `POST /retrieve`; fields of other dialects are passed over."""

    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = Field(default=None, ge=0, le=1000)  # None and 0: the server's default
    topk_retrieval: int | None = Field(default=None, ge=1, le=1000)  # that a reranker chooses from
    topk_rerank: int | None = Field(default=None, ge=1, le=1000)  # where `topk` is not given
    return_scores: bool = False

    @model_validator(mode="after")
    def one_of_two(self) -> Retrieve:
        if (self.queries is None) == (self.query is None):
            raise ValueError("either `queries` or `query` is needed, and not both")
        return self

    @property
    def reranks(self) -> bool:
        """Return whether it is the dialect of Search-R1's retrieve-and-rerank server."""
        return self.topk is None and self.topk_rerank is not None

    @property
    def texts(self) -> list[str]:
        return [self.query] if self.query is not None else (self.queries or [])


class Rerank(BaseModel):
    """The body of `POST /rerank`."""

    queries: list[str]
    documents: list[list[str | JsonObject]]  # of each query
    rerank_topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False

    @model_validator(mode="after")
    def fit(self) -> Rerank:
        if len(self.queries) != len(self.documents):
            raise ValueError("as many lists of documents as queries are needed")
        return self


class SearchServer:
    """Answers requests with one retriever, and with a reranker where there is one.

    `topk`: documents a query gets if the request does not say; `most_queries`: most queries under
    way, beyond which requests are refused with 503; `deadline_s`: seconds that a query may take.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        reranker: Reranker | None = None,
        topk: int = 3,
        most_queries: int = 1024,
        deadline_s: float = 30.0,
    ) -> None:
        self.retriever, self.reranker = retriever, reranker
        self.topk, self.most_queries = topk, most_queries
        self._client = SearchClient(Embedded(retriever), deadline_s=deadline_s, most_failures=None)
        self._scoring = asyncio.Lock()  # a model scores for one request at a time
        self._queries = 0  # under way

    async def health(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {"status": "ok", "index": self.retriever.identity, "queries": self._queries}
        )

    async def retrieve(self, request: Request) -> JSONResponse:
        query = await read_body(request, Retrieve)
        if len(query.texts) > self.most_queries:
            raise HTTPException(422, f"at most {self.most_queries} queries in a request")
        if self._queries + len(query.texts) > self.most_queries:
            raise _busy(f"{self._queries} queries are under way")
        self._queries += len(query.texts)
        try:
            results = await self._find(query)
        except SearchError as error:
            raise _busy(str(error)) from error
        finally:
            self._queries -= len(query.texts)
        form = join_contents if query.reranks else _document
        return JSONResponse({"result": _items(results, form, scored=query.return_scores)})

    async def rerank(self, request: Request) -> JSONResponse:
        query = await read_body(request, Rerank)
        try:
            passages = [[_passage(item) for item in items] for items in query.documents]
        except ValueError as error:
            raise HTTPException(422, f"documents: {error}") from error
        results = await self._rerank(query.queries, passages)
        cut = [hits[: query.rerank_topk or self.topk] for hits in results]
        return JSONResponse({"result": _items(cut, join_contents, scored=query.return_scores)})

    async def _find(self, query: Retrieve) -> list[list[Hit]]:
        most = query.topk or query.topk_rerank or self.topk
        reranks = self.reranker is not None or query.reranks
        number = max(most, query.topk_retrieval or RERANKED) if reranks else most
        hits = await asyncio.gather(*(_hits(self._client, text, number) for text in query.texts))
        if reranks:
            hits = [ranked[:most] for ranked in await self._rerank(query.texts, hits)]
        return hits

    async def _rerank(
        self, queries: list[str], passages: Sequence[Sequence[Passage]]
    ) -> list[list[Hit]]:
        if self.reranker is None:
            raise HTTPException(422, "no reranker here: start the server with --reranker")
        async with self._scoring:
            return await asyncio.to_thread(self.reranker, queries, passages)


def make_app(server: SearchServer, *, rules: Rules = RULES) -> FastAPI:
    """Return the application of a server."""
    app = FastAPI(title="rolecall search")
    app.add_middleware(Guard, replace(rules, requests=server.most_queries + MOST_WAITING))
    app.add_route("/health", server.health)
    app.add_route("/retrieve", server.retrieve, methods=["POST"])
    app.add_route("/rerank", server.rerank, methods=["POST"])
    return app


def serve(
    *,
    index: Path | None = None,
    corpus: Path | None = None,
    model: str | None = None,
    e5: bool | None = None,
    reranker: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    topk: int = 3,
    token: str = "",
) -> None:
    """Run until interrupted. The index is built from the corpus first where the folder has none;
    without `index` the folder stands beside the corpus (wiki.jsonl: wiki.jsonl.index).

    `reranker`: a cross-encoder of sentence-transformers, which then orders whatever is found.
    Raises ValueError for an index or a model that cannot be opened, ConfigError for a missing
    package.
    """
    optional("uvicorn", extra="serve")  # before an index is built
    check_address(host, token=token)
    if topk < 1:
        raise ConfigError(f"topk must be at least 1 (it is {topk})")
    folder = index if index is not None else index_folder(corpus)
    retriever = open_index(folder, corpus, model=model, e5=e5, show=True)
    orders = None if reranker is None else load_reranker(reranker)
    server = SearchServer(retriever, reranker=orders, topk=topk)
    rules = replace(RULES, token=token, local=is_local(host))
    app = make_app(server, rules=rules)
    answer_at(host, port, app, token=token, access_log=False)


def index_folder(corpus: Path | None) -> Path:
    """Return the default folder of a corpus's index: a/wiki.jsonl -> a/wiki.jsonl.index.

    Raises ConfigError if there is no corpus.
    """
    if corpus is None:
        raise ConfigError("there is nothing to search: name --corpus, --index or both")
    return corpus.with_name(f"{corpus.name}.index")


def _busy(reason: str) -> HTTPException:
    return HTTPException(503, reason, headers={"Retry-After": RETRY_AFTER_S})


async def _hits(client: SearchClient, text: str, topk: int) -> list[Hit]:
    """Return the hits of a query; none for a blank one.

    Foreign clients send some, and these must not make other queries fail.
    """
    return await client.query(text, topk) if text.strip() else []


def _items(
    found: Sequence[Sequence[Hit]], form: Callable[[Hit], str | JsonObject], *, scored: bool
) -> list[list[str | JsonObject]]:
    return [
        [{"document": form(hit), "score": hit.score} if scored else form(hit) for hit in hits]
        for hits in found
    ]


def _document(hit: Hit) -> dict[str, str]:
    return {"id": hit.id, "contents": join_contents(hit)}


def _passage(item: str | JsonObject) -> Passage:
    return split_contents(item) if isinstance(item, str) else read_passage(item)
