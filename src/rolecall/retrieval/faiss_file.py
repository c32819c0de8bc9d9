"""Opens an index file that somebody else made with faiss, beside the corpus that it is of.

As Search-R1 and Dr. MAS have them: the vector with number i is that of line i of the corpus, which
is JSON Lines. Neither file is copied or changed; passages are read from the corpus as they are hit.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np

from rolecall.core.optional import optional
from rolecall.retrieval.base import Hit, Passage
from rolecall.retrieval.corpus import fingerprint, read_passage
from rolecall.retrieval.dense import E5, E5_PREFIXES, Encode, load_encoder


class FaissFile:
    """Finds passages whose vectors are near a query's."""

    def __init__(
        self,
        index: Path,
        corpus: Path,
        *,
        model: str,
        e5: bool | None = None,
        encode: Encode | None = None,
    ) -> None:
        """`model` encodes the queries: the one whose vectors the file holds. `e5` as in
        `build_dense`.

        Raises ValueError for a file that is no index, and where index, corpus and model do not
        belong together.
        """
        self._faiss = optional("faiss", extra="dense")
        mark = fingerprint(corpus)
        try:
            flags = self._faiss.IO_FLAG_MMAP_IFC | self._faiss.IO_FLAG_READ_ONLY
            self.index = self._faiss.read_index(str(index), flags)
        except RuntimeError as error:
            raise ValueError(f"{index} is no index that faiss can read") from error
        self.lines = CorpusFile(corpus)
        if len(self.lines) != self.index.ntotal:
            raise ValueError(
                f"{index} holds {self.index.ntotal} vectors and {corpus} {len(self.lines)} "
                "lines: it is of another corpus"
            )
        self.lines[0]  # what is no JSON Lines shows here
        self.encode = encode or load_encoder(model)
        prefixed = bool(E5.search(Path(model).name)) if e5 is None else e5
        self.prefix = E5_PREFIXES[0] if prefixed else ""
        [probe] = self.encode([f"{self.prefix}probe"])
        if len(probe) != self.index.d:
            raise ValueError(
                f"{index} holds vectors of {self.index.d} numbers and model {model!r} makes "
                f"{len(probe)}: it is of another model"
            )
        content = json.dumps([fingerprint(index), model, self.prefix]).encode()
        self.identity = f"faiss:{mark}:{blake2b(content, digest_size=8).hexdigest()}"

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        vectors = self.encode([self.prefix + query for query in queries])
        scores, numbers = self.index.search(vectors, topk)
        if self.index.metric_type == self._faiss.METRIC_L2:
            scores = -scores  # a distance: lower is better
        return [self._hits(*row) for row in zip(numbers, scores, strict=True)]

    def _hits(self, numbers: Iterable[int], scores: Iterable[float]) -> list[Hit]:
        hits = []
        for number, score in zip(numbers, scores, strict=True):
            if number >= 0:  # faiss fills a short row with -1
                passage = self.lines[int(number)]
                hits.append(Hit(passage.id, passage.title, passage.text, float(score)))
        return hits


class CorpusFile:
    """The passages of a corpus in JSON Lines by number; safe in any thread.

    The file is read once, to find where its lines begin: 8 bytes of memory a line.
    """

    def __init__(self, path: Path) -> None:
        offsets, end = array("q", [0]), 0
        with path.open("rb") as file:
            for line in file:
                end += len(line)
                if line.strip():
                    offsets.append(end)
                else:  # an empty line is part of the one before
                    offsets[-1] = end
        self.path = path
        self.offsets = np.frombuffer(offsets, dtype=np.int64)  # [N + 1]
        self.file = path.open("rb")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Passage:
        """Return a passage; raises ValueError naming file and line if the line is no passage."""
        start, end = int(self.offsets[number]), int(self.offsets[number + 1])
        try:
            row = json.loads(os.pread(self.file.fileno(), end - start, start))
            return read_passage(row)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{self.path}:{number + 1}: {error}") from error
