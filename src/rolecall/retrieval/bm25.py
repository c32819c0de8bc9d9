"""Indexes the words of passages, and finds the passages that share words with a query (BM25).

Scores are those of Lucene's BM25, computed by bm25s when the index is built; a query only adds up
what is stored for its words. An index in a folder is mapped into memory, not read.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rolecall.core.optional import optional
from rolecall.retrieval.base import Hit, Passage
from rolecall.retrieval.bm25_check import check_arrays
from rolecall.retrieval.folders import Manifest, read_manifest, write_manifest, written_aside
from rolecall.retrieval.passages import PassageFile, store_passages
from rolecall.retrieval.progress import count_items

if TYPE_CHECKING:
    from bm25s import BM25


WORD = re.compile(r"\w+")

# Lucene's English analysis leaves these out; each would list most of a corpus.
LEFT_OUT = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with
"""
STOP_WORDS = frozenset(LEFT_OUT.split())


def words(text: str) -> list[str]:
    """Return runs of letters and digits in lower case, without stop words; nothing is stemmed.

    words("Where was Bor-Tal born in 1907?") -> ["where", "bor", "tal", "born", "1907"]
    """
    return [word for word in WORD.findall(text.lower()) if word not in STOP_WORDS]


K1, B = 0.9, 0.4  # Anserini's for passages; the ones of Search-R1's BM25 server
OPTIONS: dict[str, str | float] = {"words": "runs of \\w, Lucene's stop words", "k1": K1, "b": B}
FOLDER = "bm25"
# Passages from which on compiled code pays for the 6 s that compiling takes: with 1 M passages it
# answered 374 queries a second, numpy 61; with 50 k numpy answers 1,800.
COMPILED_FROM = 200_000


class Bm25:
    """Finds passages by the words they share with a query."""

    def __init__(
        self, index: BM25, passages: Sequence[Passage] | PassageFile, *, identity: str
    ) -> None:
        self.index, self.passages, self.identity = index, passages, identity

    @classmethod
    def from_passages(cls, passages: Sequence[Passage]) -> Bm25:
        """Index a small corpus in memory. Raises ValueError if it holds no words."""
        digest = blake2b(repr(passages).encode(), digest_size=8).hexdigest()
        return cls(_index(passages, show=False), passages, identity=f"bm25:{digest}")

    @classmethod
    def open(cls, folder: Path) -> Bm25:
        """Open what `build_bm25` wrote. Raises ValueError for a folder that holds no such index."""
        manifest = read_manifest(folder, kind="bm25")
        if manifest.options != OPTIONS:
            raise ValueError(f"{folder} was indexed in another way: {manifest.options}")
        bm25s = optional("bm25s", extra="search")
        try:
            index = bm25s.BM25.load(folder / FOLDER, mmap=True)
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise ValueError(f"the index in {folder} cannot be read: {error}") from error
        check_arrays(index, folder, num_passages=manifest.num_passages)
        opened = cls(index, PassageFile(folder), identity=manifest.identity)
        if len(opened.passages) != manifest.num_passages:
            raise ValueError(
                f"{folder} holds {len(opened.passages)} passages, and not as many as "
                f"its index ({manifest.num_passages}); build it anew"
            )
        if manifest.num_passages >= COMPILED_FROM:
            index.backend = "numba"
            opened.search([next(iter(index.vocab_dict))], 1)  # compiles now, not in a first query
        return opened

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Passages that share no word with a query are not among its hits."""
        tokenised = [[w for w in words(query) if w in self.index.vocab_dict] for query in queries]
        searched = [tokens for tokens in tokenised if tokens]
        if not searched:
            return [[] for _ in queries]
        most = min(topk, len(self.passages))
        numbers, scores = self.index.retrieve(searched, k=most, show_progress=False)
        results = iter(zip(numbers, scores, strict=True))
        return [self._hits(*next(results)) if tokens else [] for tokens in tokenised]

    def _hits(self, numbers: Iterable[int], scores: Iterable[float]) -> list[Hit]:
        hits = []
        for number, score in zip(numbers, scores, strict=True):
            if score > 0:
                passage = self.passages[int(number)]
                hits.append(Hit(passage.id, passage.title, passage.text, float(score)))
        return hits


def build_bm25(
    passages: Iterable[Passage], folder: Path, *, corpus: str, show: bool = False
) -> None:
    """Write an index folder; `corpus` is the fingerprint of the passages' file.

    Raises ValueError if the folder is taken or the corpus holds no words.
    """
    with written_aside(folder) as aside:
        index = _index(store_passages(passages, aside), show=show)
        index.save(aside / FOLDER)
        write_manifest(aside, Manifest("bm25", corpus, int(index.scores["num_docs"]), OPTIONS))


def _index(passages: Iterable[Passage], *, show: bool) -> BM25:
    bm25s = optional("bm25s", extra="search")
    vocabulary = defaultdict[str, int](count().__next__)  # a new word gets the next number
    rows = _Rows()
    for passage in count_items(passages, "reading passages", show=show):
        rows.append(map(vocabulary.__getitem__, words(f"{passage.title}\n{passage.text}")))
    vocabulary.default_factory = None
    if not vocabulary:
        raise ValueError("the corpus holds no words to search for")
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index(SimpleNamespace(ids=rows, vocab=vocabulary), show_progress=show)
    return index


class _Rows:
    """Numbers of the words of all passages: 4 bytes a word; iterating yields a list a passage."""

    def __init__(self) -> None:
        self.flat = array("i")
        self.ends = array("q", [0])

    def append(self, numbers: Iterable[int]) -> None:
        self.flat.extend(numbers)
        self.ends.append(len(self.flat))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in pairwise(self.ends):
            yield self.flat[start:end].tolist()
