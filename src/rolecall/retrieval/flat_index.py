"""Reads the header of a flat index of faiss: how many vectors of how many numbers follow it.

faiss writes four letters for the kind, the number d of dimensions, the number n of vectors, two
numbers that nothing reads, whether it is trained, the metric, the count of floats, and then as many
floats: n * d.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

KINDS = (b"IxFI", b"IxF2")  # compared by inner product, by distance
HEADER = struct.Struct("<4siqqqBiQ")


@dataclass(frozen=True, slots=True)
class FlatIndex:
    """The header of a flat index."""

    dimensions: int
    num_vectors: int

    @property
    def num_bytes(self) -> int:
        """The size of the whole file."""
        return HEADER.size + 4 * self.dimensions * self.num_vectors


def read_flat_header(path: Path) -> FlatIndex | None:
    """Return the header of a flat index that begins in this file; None if none does."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    kind, dimensions, number, *_, floats = HEADER.unpack(head)
    if kind not in KINDS or min(dimensions, number) < 1 or floats != dimensions * number:
        return None
    return FlatIndex(dimensions, number)
