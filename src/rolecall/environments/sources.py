"""Names of sources and how to read one in; the tasks of all of them, with unique ids, out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rolecall.core import Task

GENERATED = "generated"
MOST_MIXED = 10_000  # tasks of a source that stands beside others: one may be endless
Read = Callable[[str], Sequence[Task]]  # the tasks of one source


def listed(sources: str | list[str]) -> list[str]:
    """Raises ValueError for an empty list."""
    found = [sources] if isinstance(sources, str) else list(sources)
    if not found:
        raise ValueError("an empty list of sources")
    return found


def gather(sources: list[str], *, read: Read) -> Sequence[Task]:
    """The tasks of several sources in their order; a single one's may be endless."""
    if len(sources) == 1:
        return read(sources[0])
    return [
        replace(task, id=f"{Path(source).stem}/{task.id}")  # ids are unique within a source only
        for source in sources
        for task in read(source)[:MOST_MIXED]
    ]
