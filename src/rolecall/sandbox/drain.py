"""Keeps the start and the end of a stream as it is written."""

from __future__ import annotations


class Drain:
    """Keeps `most` bytes: half from the start, half from the end.

    most=4: "abc", "defg" -> head "ab", tail "fg", 3 omitted.
    """

    def __init__(self, most: int, *, lost: int = 0) -> None:
        """`lost`: bytes of the middle that somebody cut out before."""
        self._head, self._tail = bytearray(), bytearray()
        self._most_head, self._most_tail = most - most // 2, most // 2
        self._total = lost

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._most_head - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: max(0, len(self._tail) - self._most_tail)]

    @property
    def omitted_bytes(self) -> int:
        """Bytes that were not kept."""
        return self._total - len(self._head) - len(self._tail)

    def text(self) -> str:
        """Return what was kept; bytes that are not UTF-8 are replaced, a gap is named."""
        if not self.omitted_bytes:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}{gap(self.omitted_bytes)}{tail}"


def gap(num_bytes: int) -> str:
    """Return the notice in the place of bytes that were cut out."""
    return f"\n... {num_bytes} bytes omitted ...\n"
