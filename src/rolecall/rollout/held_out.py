"""Chooses the tasks of a split that are evaluated: some of each source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task


def held_out(tasks: Iterable[Task], *, per_source: int, seed: int | None = None) -> list[Task]:
    """Return the first `per_source` tasks of each data source, of each family, in their order.

    With a seed they are drawn from all tasks of the source, each by its own name: which others
    there are, and where they stand, moves no draw.
    """
    if seed is not None:
        return _drawn(list(tasks), per_source=per_source, seed=seed)
    counts: Counter[tuple[str, str]] = Counter()
    kept = []
    for task in tasks:
        source = (task.family, task.source)
        if counts[source] < per_source:
            counts[source] += 1
            kept.append(task)
    return kept


def _drawn(tasks: list[Task], *, per_source: int, seed: int) -> list[Task]:
    """Return the tasks whose hashes are lowest."""
    lots: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for index, task in enumerate(tasks):
        lot = derive_seed("subset", seed, task.family, task.source, task.id)
        lots[task.family, task.source].append((lot, index))
    kept = sorted(index for of in lots.values() for _, index in sorted(of)[:per_source])
    return [tasks[index] for index in kept]
