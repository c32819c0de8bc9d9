"""Indexes vectors of passages, and finds the passages with vectors near to a query's.

Vectors come from any function of texts, as a rule a sentence-transformers model; faiss compares
all of them by inner product. An index in a folder is mapped into memory, not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rolecall.core.optional import optional, sentence_model
from rolecall.retrieval.base import Hit, Passage
from rolecall.retrieval.folders import Manifest, read_manifest, write_manifest, written_aside
from rolecall.retrieval.passages import PassageFile, store_passages
from rolecall.retrieval.progress import count_items

if TYPE_CHECKING:
    import faiss


Encode = Callable[[list[str]], NDArray[np.float32]]  # texts -> vectors [N, D]

FILE = "vectors.faiss"
BATCH = 256  # passages that are encoded at once
E5 = re.compile(r"\be5\b", re.IGNORECASE)  # in the name of a model of that family
E5_PREFIXES = ("query: ", "passage: ")  # they are trained with them
MAX_IDS = 256  # of a query or a passage; what is beyond is not read


class Dense:
    """Finds passages whose vectors are near a query's."""

    def __init__(self, folder: Path, encode: Encode | None = None) -> None:
        """Open what `build_dense` wrote; without `encode` the model that it names is loaded.

        Raises ValueError for a folder that holds no such index.
        """
        manifest = read_manifest(folder, kind="dense")
        faiss = optional("faiss", extra="dense")
        self.index = faiss.read_index(
            str(folder / FILE), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY
        )
        self.passages = PassageFile(folder)
        self.identity = manifest.identity
        self.prefix = str(manifest.options["query_prefix"])
        self.encode = encode or load_encoder(str(manifest.options["model"]))

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        vectors = self.encode([self.prefix + query for query in queries])
        scores, numbers = self.index.search(vectors, topk)
        return [self._hits(*row) for row in zip(numbers, scores, strict=True)]

    def _hits(self, numbers: Iterable[int], scores: Iterable[float]) -> list[Hit]:
        hits = []
        for number, score in zip(numbers, scores, strict=True):
            if number >= 0:  # faiss fills a short row with -1
                passage = self.passages[int(number)]
                hits.append(Hit(passage.id, passage.title, passage.text, float(score)))
        return hits


def build_dense(
    passages: Iterable[Passage],
    folder: Path,
    *,
    corpus: str,
    model: str,
    e5: bool | None = None,
    encode: Encode | None = None,
    show: bool = False,
) -> None:
    """Write an index folder; `corpus` is the fingerprint of the passages' file.

    `e5`: queries and passages get the prefixes of that family; None: if the model's name says so.

    Raises ValueError if the folder is taken or there are no passages.
    """
    encode = encode or load_encoder(model)
    prefixed = bool(E5.search(Path(model).name)) if e5 is None else e5
    of_query, of_passage = E5_PREFIXES if prefixed else ("", "")
    with written_aside(folder) as aside:
        kept = count_items(store_passages(passages, aside), "encoding passages", show=show)
        index = _index(kept, encode, prefix=of_passage)
        optional("faiss", extra="dense").write_index(index, str(aside / FILE))
        options: dict[str, str | float] = {"model": model, "query_prefix": of_query}
        write_manifest(aside, Manifest("dense", corpus, index.ntotal, options))


def load_encoder(model: str) -> Encode:
    """Load a sentence-transformers model (a name or a folder) as a function of texts.

    Raises ValueError if there is no such model.
    """
    loaded = sentence_model("SentenceTransformer", model)
    loaded.max_seq_length = min(loaded.max_seq_length or MAX_IDS, MAX_IDS)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        vectors = loaded.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.ascontiguousarray(vectors, dtype=np.float32)

    return encode


def _index(passages: Iterator[Passage], encode: Encode, *, prefix: str) -> faiss.Index:
    index = None
    while batch := list(islice(passages, BATCH)):
        vectors = encode([f"{prefix}{p.title}\n{p.text}" for p in batch])
        if index is None:
            index = optional("faiss", extra="dense").IndexFlatIP(vectors.shape[1])
        index.add(vectors)
    if index is None:
        raise ValueError("the corpus holds no passages")
    return index
