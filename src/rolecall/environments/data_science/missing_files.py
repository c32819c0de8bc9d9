"""Leaves out the tasks whose files are not on this machine, and names them in one line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rolecall.core.types import Task

notices = logging.getLogger("rolecall.notices")

MOST_NAMED = 5  # tasks in the line that counts those that are left out


def keep_complete(tasks: Sequence[Task], source: Path) -> list[Task]:
    """Return the tasks whose tables and answers are there; one line counts and names the others.

    Raises ValueError if no task of the file `source` has its files.
    """
    lacking = {task.id: reason for task in tasks if (reason := find_missing(task))}
    if not lacking:
        return list(tasks)
    first = next(iter(lacking.values()))
    if len(lacking) == len(tasks):
        raise ValueError(
            f"{source}: none of its {len(tasks)} tasks has its files here, first: {first}; put "
            "the tables there, or set environment.root to the folder to which the paths of the "
            "rows are relative"
        )
    names = ", ".join([*lacking][:MOST_NAMED])
    more = f" and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
    notices.warning(
        "%s: %d of %d tasks are left out, because their files are missing: %s%s; first: %s",
        source,
        len(lacking),
        len(tasks),
        names,
        more,
        first,
    )
    return [task for task in tasks if task.id not in lacking]


def find_missing(task: Task) -> str:
    """Return what the first missing file of a task is, or "" if all are there."""
    for path in task.info["paths"].values():
        if not Path(path).is_file():
            return f"there is no file {path}"
    folder = Path(task.info["answers"])
    if not folder.is_dir():
        return f"there is no folder {folder}"
    number = len(list(folder.glob("*.csv")))
    return "" if number == 1 else f"{folder} holds {number} CSV files and not one"
