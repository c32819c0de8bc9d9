"""Shows in the terminal how many items of a stream have passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rolecall.runtime.consoles import PlainConsole

T = TypeVar("T")
STRIDE = 1000  # items between two updates: an update costs as much as reading a passage


def count_items(
    items: Iterable[T], what: str, *, show: bool, total: int | None = None
) -> Iterator[T]:
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=PlainConsole(stderr=True), disable=not show) as progress:
        task = progress.add_task(what, total=total)
        number = 0
        for number, item in enumerate(items, start=1):
            yield item
            if number % STRIDE == 0:
                progress.update(task, completed=number)
        progress.update(task, completed=number)
