"""Ids that are about to be read in; the cache row that holds the longest beginning of them out.

What a row has read stays useful after it ended: for the members of a group, for an agent's next
call, for another agent of the same policy that reads the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolecall.core import Ids

BLOCK = 16  # ids that are looked up together
Owner = tuple[str, int]  # policy and version: other weights make other keys and values


@dataclass(slots=True, eq=False)
class Held:
    """What one cache row holds."""

    owner: Owner
    ids: Ids  # [n] its first n positions are the keys and values of these
    slot: int  # cache row; -1: nothing of it is left
    used: int = 0  # when it was last read or written


class Prefixes:
    """All that the rows of a cache hold, by the hashes of their first 16, 32, 48 ... ids."""

    def __init__(self) -> None:
        self._index: dict[int, Held] = {}

    def add(self, held: Held) -> None:
        for key in chain(held.owner, held.ids):
            self._index[key] = held

    def drop(self, held: Held) -> None:
        held.slot = -1
        for key in chain(held.owner, held.ids):
            if self._index.get(key) is held:
                del self._index[key]

    def find(self, owner: Owner, ids: Ids, keys: list[int]) -> tuple[Held | None, int]:
        """The holder of the longest known beginning of `ids`, and how much of it is shared.

        `keys` is their chain. The last id is never counted: what follows it must be computed.
        """
        found = None
        for key in keys:
            holder = self._index.get(key)
            if holder is None:
                break
            found = holder
        if found is None or found.owner != owner:
            return None, 0
        size = min(len(found.ids), len(ids) - 1)
        differ = np.flatnonzero(found.ids[:size] != ids[:size])
        return found, int(differ[0]) if len(differ) else size


def chain(owner: Owner, ids: Ids) -> list[int]:
    """A hash for each whole block, which depends on all ids before it."""
    keys = []
    key = hash(owner)
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        key = hash((key, ids[end - BLOCK : end].tobytes()))
        keys.append(key)
    return keys
