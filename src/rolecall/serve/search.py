"""A corpus and its index in, a search server out that clients of Search-R1 and Dr. MAS can ask.

`POST /retrieve` takes `queries` or `query`, `topk` and `return_scores`; `GET /health` tells which
index answers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, model_validator

from rolecall.config_errors import ConfigError
from rolecall.retrieval.base import Hit, Retriever, SearchError
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.corpus import contents_of
from rolecall.retrieval.embedded import Embedded
from rolecall.retrieval.extras import optional
from rolecall.retrieval.opening import open_index
from rolecall.serve.binding import answer_at

if TYPE_CHECKING:
    from fastapi import FastAPI

RETRY_AFTER_S = "1"


class Retrieve(BaseModel):
    """The body of `POST /retrieve`; fields of other dialects are passed over."""

    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = Field(default=None, ge=0, le=1000)  # None and 0: the server's default
    return_scores: bool = False

    @model_validator(mode="after")
    def one_of_two(self) -> Retrieve:
        if (self.queries is None) == (self.query is None):
            raise ValueError("either `queries` or `query` is needed, and not both")
        return self

    @property
    def texts(self) -> list[str]:
        return [self.query] if self.query is not None else (self.queries or [])


def make_app(
    retriever: Retriever, *, topk: int = 3, most_queries: int = 1024, deadline_s: float = 30.0
) -> FastAPI:
    """`topk`: documents a query gets if the request does not say; `most_queries` may be under
    way, beyond which requests are sent away with 503.
    """
    fastapi = optional("fastapi", extra="serve")
    client = SearchClient(Embedded(retriever), deadline_s=deadline_s, most_failures=None)
    app: FastAPI = fastapi.FastAPI(title="rolecall search")
    under_way = 0

    def busy(why: str) -> Exception:
        found: Exception = fastapi.HTTPException(503, why, headers={"Retry-After": RETRY_AFTER_S})
        return found

    @app.post("/retrieve")
    async def retrieve(asked: Retrieve) -> dict[str, Any]:
        nonlocal under_way
        texts, most = asked.texts, asked.topk or topk
        if len(texts) > most_queries:
            raise fastapi.HTTPException(422, f"at most {most_queries} queries in a request")
        if under_way + len(texts) > most_queries:
            raise busy(f"{under_way} queries are under way")
        under_way += len(texts)
        try:
            found = await asyncio.gather(*(_hits(client, text, most) for text in texts))
        except SearchError as error:
            raise busy(str(error)) from error
        finally:
            under_way -= len(texts)
        return {"result": [[_item(h, scored=asked.return_scores) for h in hits] for hits in found]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "index": retriever.identity, "queries": under_way}

    return app


def serve(
    *,
    index: Path,
    corpus: Path | None = None,
    model: str | None = None,
    e5: bool | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    topk: int = 3,
) -> None:
    """Run until interrupted. The index is built from the corpus first where the folder has none.

    Raises ValueError for an index that cannot be opened, ConfigError for a missing package.
    """
    optional("uvicorn", extra="serve")  # before an index is built
    if topk < 1:
        raise ConfigError(f"topk must be at least 1 (it is {topk})")
    retriever = open_index(index, corpus, model=model, e5=e5, show=True)
    answer_at(host, port, make_app(retriever, topk=topk), access_log=False)


async def _hits(client: SearchClient, text: str, topk: int) -> list[Hit]:
    """A blank query finds nothing: foreign clients send some, and have no other query fail."""
    return await client.query(text, topk) if text.strip() else []


def _item(hit: Hit, *, scored: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": contents_of(hit)}
    return {"document": document, "score": hit.score} if scored else document
