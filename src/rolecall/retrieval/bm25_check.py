"""Checks the numbers of an index before compiled code uses them as places in memory.

An index is data of others. Where numpy raises for a number that is out of range, compiled code
reads and writes what lies there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bm25s import BM25
    from numpy.typing import NDArray


CHUNK = 2**24  # numbers that are looked at together
PARAMETERS = {"method": "lucene", "idf_method": "lucene", "dtype": "float32", "int_dtype": "int32"}


def check_arrays(index: BM25, folder: Path, *, num_passages: int) -> None:
    """Raise ValueError where an index of bm25s is not one of so many passages."""
    wrong = _wrong(index, num_passages)
    if wrong:
        raise ValueError(f"the index in {folder} is damaged: {wrong}; build it anew")


def check_offsets(offsets: NDArray[np.int64], size: int, folder: Path) -> None:
    """Raise ValueError where the lines of passages do not lie in a file of `size` bytes."""
    if not _is_whole_numbers(offsets) or not _are_places(offsets, size):
        raise ValueError(f"the passages in {folder} are damaged; build the index anew")


def _wrong(index: BM25, num_passages: int) -> str:
    scores, terms = index.scores, index.vocab_dict
    data, indices, ends = scores["data"], scores["indices"], scores["indptr"]
    for name, value in PARAMETERS.items():
        if getattr(index, name, value) != value:
            return f"its {name} is {getattr(index, name)!r}"
    if scores["num_docs"] != num_passages:
        return f"it is of {scores['num_docs']} passages and not of {num_passages}"
    if data.ndim != 1 or data.dtype.kind != "f" or not _is_whole_numbers(indices):
        return "its scores are no list of numbers"
    if not _is_whole_numbers(ends) or len(data) != len(indices):
        return "its scores have no order"
    if not _are_places(ends, len(data)):
        return "its words begin nowhere"
    if not isinstance(terms, dict) or any(
        type(number) is not int or not 0 <= number < len(ends) - 1
        for word, number in terms.items()
        if word  # bm25s adds an empty one, for which nobody asks
    ):
        return "its words have no numbers"
    for chunk in _chunks(indices):
        if chunk.min() < 0 or chunk.max() >= num_passages:
            return "it names passages that are not there"
    return ""


def _is_whole_numbers(array: NDArray[np.int64]) -> bool:
    return bool(array.ndim == 1 and array.dtype.kind in "iu")


def _are_places(ends: NDArray[np.int64], size: int) -> bool:
    """Return whether numbers begin with 0, end with `size`, and never fall."""
    if not len(ends) or ends[0] != 0 or ends[-1] != size:
        return False
    last = 0
    for chunk in _chunks(ends):
        numbers = chunk.astype(np.int64)
        if numbers[0] < last or bool((np.diff(numbers) < 0).any()):
            return False
        last = int(numbers[-1])
    return True


def _chunks(array: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(array), CHUNK):
        yield np.asarray(array[start : start + CHUNK])
