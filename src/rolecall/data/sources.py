"""Gathers the tasks of several named sources, with unique ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Task
from rolecall.data.tasks import unique

GENERATED = "generated"
Columns = dict[Literal["question", "answer"], str]  # the file's names of these two columns
MOST_MIXED = 10_000  # tasks of an endless source that stands beside others
Read = Callable[[str], Sequence[Task]]  # the tasks of one source


class LazyTasks(Sequence[Task], ABC):
    """`size` tasks, each made when it is asked for."""

    size: int

    @abstractmethod
    def make(self, index: int) -> Task:
        """Task number `index`: the same each time."""

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.make(index)


def list_sources(sources: str | list[str]) -> list[str]:
    """Return the names of the sources; raises ValueError for an empty list."""
    names = [sources] if isinstance(sources, str) else list(sources)
    if not names:
        raise ValueError("the list of sources is empty; name at least one")
    return names


def generates(sources: dict[str, list[str]], *, test_size: int | None, **options: object) -> bool:
    """Return whether any of the tasks are generated.

    `options` are those of generated tasks, None where they are not given. Raises ValueError for one
    that would have no effect, as `test_size` has none where the test tasks are not generated.
    """
    has_generated = any(GENERATED in named for named in sources.values())
    set_options = [name for name, value in options.items() if value is not None]
    if set_options and not has_generated:
        raise ValueError(
            f"{set_options[0]} has no effect, because no tasks are generated; remove it, or write "
            f"`{GENERATED}` in train or test"
        )
    if test_size is not None and GENERATED not in sources["test"]:
        raise ValueError(
            "test_size has no effect, because the test tasks are not generated; remove it, or "
            f"write `{GENERATED}` in test"
        )
    return has_generated


def check_columns(columns: Columns | None, sources: dict[str, list[str]]) -> dict[str, str]:
    """Return the file's names of columns, by ours. Raises ValueError where no file is read."""
    if columns and {*sources["train"], *sources["test"]} == {GENERATED}:
        raise ValueError(
            "columns has no effect, because no file is read; remove it, or name a file in train or "
            "test"
        )
    return {str(name): column for name, column in (columns or {}).items()}


def bound_tasks(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return all tasks; of tasks without end the first MOST_MIXED."""
    return tasks[:MOST_MIXED] if len(tasks) >= ENDLESS else tasks


def gather(sources: list[str], *, read: Read) -> Sequence[Task]:
    """Return the tasks of several sources in their order; a single one's may be endless.

    gather(["a/train.jsonl", "b/train.jsonl"]) -> ids "train/1", ..., "train-2/1", ...
    """
    if len(sources) == 1:
        return read(sources[0])
    names: list[str] = []  # ids are unique within a source only
    for number, source in enumerate(sources, start=1):
        names.append(unique(Path(source).stem, names, number=number))
    return [
        replace(task, id=f"{name}/{task.id}")
        for name, source in zip(names, sources, strict=True)
        for task in bound_tasks(read(source))
    ]
