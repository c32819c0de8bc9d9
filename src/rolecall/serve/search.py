"""Serves a corpus and its index to clients of Search-R1 and Dr. MAS.

`POST /retrieve` takes `queries` or `query`, `topk` and `return_scores`; `GET /health` tells which
index answers. With a reranker `/retrieve` takes `topk_retrieval` and `topk_rerank`, too, and
`POST /rerank` orders documents that the client has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import optional
from rolecall.retrieval.base import Hit, Passage, Retriever, SearchError
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.corpus import join_contents, read_passage, split_contents
from rolecall.retrieval.dialects import RERANKED
from rolecall.retrieval.embedded import Embedded
from rolecall.retrieval.opening import open_index
from rolecall.retrieval.reranking import Reranker, load_reranker
from rolecall.serve.binding import answer_at, check_address
from rolecall.serve.guard import Guard, Rules, is_local

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

RETRY_AFTER_S = "1"
MOST_WAITING = 256  # requests beside those whose queries are under way


Asked = TypeVar("Asked", bound=BaseModel)


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


def make_app(
    retriever: Retriever,
    *,
    reranker: Reranker | None = None,
    topk: int = 3,
    most_queries: int = 1024,
    deadline_s: float = 30.0,
    token: str = "",
    body_mb: int = 8,
    local: bool = True,
) -> FastAPI:
    """Return the server.

    `topk`: documents a query gets if the request does not say; `most_queries`: most queries under
    way, beyond which requests are refused with 503; `token`: asked for as a bearer token; `local`:
    the server listens on loopback.
    """
    fastapi = optional("fastapi", extra="serve")
    answered = optional("fastapi.responses", extra="serve").JSONResponse
    client = SearchClient(Embedded(retriever), deadline_s=deadline_s, most_failures=None)
    app: FastAPI = fastapi.FastAPI(title="rolecall search")
    rules = Rules(
        token=token,
        local=local,
        body_bytes=body_mb << 20,
        requests=most_queries + MOST_WAITING,
        open_paths=("/health",),
    )
    app.add_middleware(Guard, rules)
    scoring = asyncio.Lock()  # a model scores for one request at a time
    under_way = 0

    def reranks(asked: Retrieve) -> bool:
        return reranker is not None or asked.reranks

    def busy(why: str) -> Exception:
        error: Exception = fastapi.HTTPException(503, why, headers={"Retry-After": RETRY_AFTER_S})
        return error

    async def rerank_hits(
        queries: list[str], found: Sequence[Sequence[Passage]]
    ) -> list[list[Hit]]:
        if reranker is None:
            raise fastapi.HTTPException(422, "no reranker here: start the server with --reranker")
        async with scoring:
            return await asyncio.to_thread(reranker, queries, found)

    async def read(request: Request, kind: type[Asked]) -> Asked:
        """Read a request as pydantic reads JSON: NaN and half of a surrogate pair are no values
        of it.
        """
        try:
            return kind.model_validate_json(await request.body())
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
            raise fastapi.HTTPException(422, errors) from error

    async def retrieve(request: Request) -> Response:
        nonlocal under_way
        query = await read(request, Retrieve)
        texts, most = query.texts, query.topk or query.topk_rerank or topk
        among = max(most, query.topk_retrieval or RERANKED) if reranks(query) else most
        if len(texts) > most_queries:
            raise fastapi.HTTPException(422, f"at most {most_queries} queries in a request")
        if under_way + len(texts) > most_queries:
            raise busy(f"{under_way} queries are under way")
        under_way += len(texts)
        try:
            results = await asyncio.gather(*(_hits(client, text, among) for text in texts))
            if reranks(query):
                results = [hits[:most] for hits in await rerank_hits(texts, results)]
        except SearchError as error:
            raise busy(str(error)) from error
        finally:
            under_way -= len(texts)
        form = join_contents if query.reranks else _document
        return answered({"result": _items(results, form, scored=query.return_scores)})

    async def rerank(request: Request) -> Response:
        query = await read(request, Rerank)
        try:
            passages = [[_passage(item) for item in items] for items in query.documents]
        except ValueError as error:
            raise fastapi.HTTPException(422, f"documents: {error}") from error
        results = await rerank_hits(query.queries, passages)
        cut = [hits[: query.rerank_topk or topk] for hits in results]
        return answered({"result": _items(cut, join_contents, scored=query.return_scores)})

    @app.get("/health")
    async def health() -> JsonObject:
        return {"status": "ok", "index": retriever.identity, "queries": under_way}

    app.add_route("/retrieve", retrieve, methods=["POST"])
    app.add_route("/rerank", rerank, methods=["POST"])
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
    app = make_app(retriever, reranker=orders, topk=topk, token=token, local=is_local(host))
    answer_at(host, port, app, token=token, access_log=False)


def index_folder(corpus: Path | None) -> Path:
    """Return the default folder of a corpus's index: a/wiki.jsonl -> a/wiki.jsonl.index.

    Raises ConfigError if there is no corpus.
    """
    if corpus is None:
        raise ConfigError("there is nothing to search: name --corpus, --index or both")
    return corpus.with_name(f"{corpus.name}.index")


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
