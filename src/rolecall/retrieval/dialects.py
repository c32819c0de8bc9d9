"""Writes requests to search servers of several dialects, and reads their replies.

| dialect | servers                           | request                                 |
|---------|-----------------------------------|-----------------------------------------|
| batch   | Search-R1's, web front-ends, ours | queries, topk                           |
| single  | Dr. MAS                           | query, topk                             |
| rerank  | Search-R1's retrieve and rerank   | queries, topk_retrieval, topk_rerank    |

All answer {"result": [[item, ...], ...]}; an item is text, a document, or a document with a score.
"""

from __future__ import annotations

from math import isfinite
from typing import Literal

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.retrieval.base import Hit, Passage, SearchError
from rolecall.retrieval.corpus import read_passage, split_contents
from rolecall.runtime.secret_texts import excerpt

Dialect = Literal["batch", "single", "rerank"]
RERANKED = 10  # documents that a reranker chooses from, if not more are asked for


def request_body(dialect: Dialect, queries: list[str], topk: int) -> JsonObject:
    """Scores are asked for in every dialect: the batch server breaks without."""
    body: JsonObject = {"return_scores": True}
    if dialect == "single":
        assert len(queries) == 1, "the single dialect takes one query"
        return body | {"query": queries[0], "topk": topk}
    if dialect == "rerank":
        return body | {
            "queries": queries,
            "topk_retrieval": max(RERANKED, topk),
            "topk_rerank": topk,
        }
    return body | {"queries": queries, "topk": topk}


def read_reply(reply: JsonValue, *, num_queries: int, topk: int) -> list[list[Hit]]:
    """At most `topk` hits a query, in the server's order.

    {"result": [[{"document": {"contents": "\"Ada\"\nAda wrote."}, "score": 2.5}]]} ->
    [[Hit("", "Ada", "Ada wrote.", 2.5)]]

    Raises SearchError for a reply of another form or with a row too many or too few.
    """
    rows = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise SearchError(f"a reply without lists of results: {excerpt(reply, 200)}")
    if len(rows) != num_queries:
        raise SearchError(f"{len(rows)} results for {num_queries} queries")
    return [[_hit(item) for item in row[:topk]] for row in rows]


def _hit(item: JsonValue) -> Hit:
    score = item.get("score") if isinstance(item, dict) else None
    document = item.get("document", item) if isinstance(item, dict) else item
    try:
        passage = split_contents(document) if isinstance(document, str) else _passage(document)
    except ValueError as error:
        raise SearchError(f"a result that is no document: {excerpt(item, 200)}") from error
    rating = float(score) if isinstance(score, (int, float)) else None
    if rating is not None and not isfinite(rating):
        raise SearchError(f"a score that is no number: {score}")
    return Hit(passage.id, passage.title, passage.text, rating)


def _passage(document: JsonValue) -> Passage:
    if not isinstance(document, dict):
        raise ValueError("neither a mapping nor text")
    return read_passage(document)
