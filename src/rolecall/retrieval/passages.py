"""Stores passages on disk and reads any of them by its number.

The folder holds `passages.jsonl` (one `[id, title, text]` a line) and `offsets.npy` [N + 1] (the
byte at which each line begins), so an index needs neither the corpus file nor memory for it.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from rolecall.retrieval.base import Passage
from rolecall.retrieval.bm25_check import check_offsets

LINES = "passages.jsonl"
OFFSETS = "offsets.npy"


def store_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Yield the same passages; the folder has them once the last one is taken."""
    offsets = array("q", [0])
    with (folder / LINES).open("wb") as file:
        for passage in passages:
            line = json.dumps([passage.id, passage.title, passage.text]).encode() + b"\n"
            file.write(line)
            offsets.append(offsets[-1] + len(line))
            yield passage
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))


class PassageFile:
    """The passages that `stored` wrote to a folder; safe in any thread."""

    def __init__(self, folder: Path) -> None:
        """Open the passages of a folder; raises ValueError if its offsets do not fit its lines."""
        self.offsets = np.load(folder / OFFSETS, mmap_mode="r")  # [N + 1]
        self.file = (folder / LINES).open("rb")
        check_offsets(self.offsets, os.fstat(self.file.fileno()).st_size, folder)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Passage:
        start, end = int(self.offsets[number]), int(self.offsets[number + 1])
        return Passage(*json.loads(os.pread(self.file.fileno(), end - start, start)))
