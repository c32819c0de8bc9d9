"""Declares passages, hits, the retriever that finds them, and the ways in which it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rolecall.core.errors import InfrastructureError, RunEndingError


@dataclass(frozen=True, slots=True)
class Passage:
    """One document of a corpus."""

    id: str  # "" where a foreign server names none
    title: str  # "" if it has none
    text: str


@dataclass(frozen=True, slots=True)
class Hit(Passage):
    """A passage that a query found."""

    score: float | None = None  # higher is better; None: the server does not tell


class Retriever(Protocol):
    """An index of one corpus, in this process."""

    @property
    def identity(self) -> str:
        """Changes with the corpus, with the way it is indexed, and with nothing else."""
        ...

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Return at most `topk` hits for each query, best first; fewer if fewer match.

        It blocks.
        """
        ...


class SearchError(InfrastructureError):
    """The search itself failed: what it would have found is unknown, not nothing."""


class SearchDownError(SearchError, RunEndingError):
    """Searches failed so often in a row that no more are tried."""


class EmptyQueryError(ValueError):
    """A query without a word: the asker's mistake, which no server was bothered with."""
