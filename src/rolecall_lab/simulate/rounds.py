"""Finds which calls of an episode were made at once, by their places in the tree of its calls."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby

Path = tuple[int, ...]


def rounds(paths: list[Path], candidates: list[int | None]) -> list[list[int]]:
    """Numbers of the turns in rounds; those of one round were asked for at once.

    Calls follow one another, tasks that stand side by side run at the same time, and so do the
    candidates of a call: (0,), (1, 0), (2, 0), (3,) -> [[0], [1, 2], [3]]. Tasks of several calls
    are taken to advance together.
    """
    levels: dict[int, list[int]] = defaultdict(list)
    _place(sorted(range(len(paths)), key=lambda n: paths[n]), 0, 0, paths, candidates, levels)
    return [levels[level] for level in sorted(levels)]


def _place(
    turns: list[int],
    depth: int,
    first: int,
    paths: list[Path],
    candidates: list[int | None],
    levels: dict[int, list[int]],
) -> int:
    """Give turns that agree in `depth` numbers of their paths their levels, from `first` on.

    Returns the level after them.
    """
    now = end = first
    for _, these in groupby(turns, key=lambda n: paths[n][depth]):
        inside = list(these)
        leaf = len(paths[inside[0]]) == depth + 1
        if leaf and candidates[inside[0]] is None:
            now = end  # after the tasks before it
            levels[now].append(inside[0])
            now = end = now + 1
        elif leaf:  # the call above it has them all
            levels[first].append(inside[0])
            end = first + 1
        elif candidates[inside[0]] is not None and len(paths[inside[0]]) == depth + 2:
            now = end = _place(inside, depth + 1, end, paths, candidates, levels)
        else:
            end = max(end, _place(inside, depth + 1, now, paths, candidates, levels))
    return end
