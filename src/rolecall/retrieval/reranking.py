"""Orders hits by the scores of a cross-encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rolecall.core.optional import sentence_model
from rolecall.retrieval.base import Hit, Passage

Score = Callable[[list[tuple[str, str]]], Sequence[float]]  # (query, passage) pairs -> scores


class Reranker:
    """Reads each passage together with the query, which an index of vectors cannot."""

    def __init__(self, score: Score) -> None:
        self.score = score

    def __call__(self, queries: list[str], found: Sequence[Sequence[Passage]]) -> list[list[Hit]]:
        """Order each query's own passages, best first; all queries are scored at once.

        It blocks.
        """
        pairs = [
            (query, f"{passage.title}\n{passage.text}")
            for query, passages in zip(queries, found, strict=True)
            for passage in passages
        ]
        scores = iter(map(float, self.score(pairs)) if pairs else ())
        scored = [[_hit(passage, next(scores)) for passage in passages] for passages in found]
        return [sorted(hits, key=lambda hit: -(hit.score or 0.0)) for hits in scored]


def load_reranker(model: str) -> Reranker:
    """Load a cross-encoder of sentence-transformers (a name or a folder).

    Raises ValueError if there is no such model.
    """
    loaded = sentence_model("CrossEncoder", model)
    return Reranker(lambda pairs: loaded.predict(pairs, show_progress_bar=False).tolist())


def _hit(passage: Passage, score: float) -> Hit:
    if isinstance(passage, Hit):
        return dataclasses.replace(passage, score=score)
    return Hit(passage.id, passage.title, passage.text, score)
