"""Reads a file's rows as tasks, in its order, each with an id that no other has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path

from rolecall.core.json_types import JsonValue
from rolecall.core.types import Task
from rolecall.data.file_check import FileCheck
from rolecall.data.files import Row, read_rows

log = logging.getLogger(__name__)
notices = logging.getLogger("rolecall.notices")

Make = Callable[[Row, str], Task]  # (row, its id) -> its task; ValueError for a row that has none


class IncompleteRowError(ValueError):
    """A row has no question or no truth; the other rows of its file can still be used."""


def read_tasks(
    path: Path,
    make: Make,
    *,
    ids: Sequence[str] = ("id",),
    unseen: Collection[str] = (),
    columns: Mapping[str, str] | None = None,
) -> list[Task]:
    """Read one task from each row, and report what is odd about the file.

    Rows without a question or a truth are left out and counted, unless most rows are. `unseen`:
    columns that agents are not meant to see; `columns`: the file's names of columns, by the names
    that `make` reads. Raises ValueError naming file and row for a row that `make` refuses.
    """
    tasks: list[Task] = []
    first, num_incomplete = "", 0
    check = FileCheck(path, unseen=unseen)
    for name, where, row in named_rows(path, ids=ids):
        try:
            task = make(_rename(row, columns or {}), name)
        except IncompleteRowError as error:
            first, num_incomplete = first or f"{where}: {error}", num_incomplete + 1
            continue
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        tasks.append(task)
        check.add(row, task)
    total = len(tasks) + num_incomplete
    if num_incomplete > len(tasks):
        like = f" ({num_incomplete:,} of {total:,} rows are like it)" if total > 1 else ""
        raise ValueError(f"{first}{like}")
    if num_incomplete:
        notices.warning(
            "%s; rows without a question or a truth are left out (%s of %s)",
            first,
            f"{num_incomplete:,}",
            f"{total:,}",
        )
    check.report()
    return tasks


def _rename(row: Row, columns: Mapping[str, str]) -> Row:
    """Return a row with other names of columns: {"question": "q"} makes {"q": 1} {"question": 1}.

    Raises IncompleteRowError where the row lacks one of them.
    """
    if not columns:
        return row
    for column in columns.values():
        if column not in row:
            raise IncompleteRowError(f"no column {column!r} (columns: {', '.join(row)})")
    rest = {column: value for column, value in row.items() if column not in columns.values()}
    return {**rest, **{name: row[column] for name, column in columns.items()}}


def is_blank(value: JsonValue) -> bool:
    """Return whether a cell holds nothing: None, NaN, white space, or a list of these alone."""
    if isinstance(value, (list, tuple)):
        return all(map(is_blank, value))
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def named_rows(path: Path, *, ids: Sequence[str] = ("id",)) -> Iterator[tuple[str, str, Row]]:
    """Yield (id, place, row) of each row, with the place as messages name it.

    The id is what stands in the first of the columns `ids` that the row has, else the name of the
    file and the row's number; so the same file gives the same ids. The number is also added to an
    id that an earlier row has, and one warning names the first row of that kind.

    {"id": "a"}, {}, {"id": "a"}, {"id": 4} in sums.jsonl ->
    ("a", "sums.jsonl:1", ...), ("sums-2", ":2"), ("a-3", ":3"), ("4", ":4")
    """
    names: set[str] = set()
    repeated: list[str] = []
    stem = path.name.partition(".")[0]
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        stated = given_id(row, ids)[1] or f"{stem}-{number}"
        name = unique(stated, names, number=number)
        if name != stated:
            repeated.append(f"{where}: an earlier row has the id {stated!r}, this one is {name!r}")
        names.add(name)
        yield name, where, row
    if repeated:
        more = f" ({len(repeated) - 1} more rows are like it)" if len(repeated) > 1 else ""
        log.warning("%s%s", repeated[0], more)


def given_id(row: Row, ids: Sequence[str]) -> tuple[str, str]:
    """Return (column, id) of the first of the columns that holds an id, else ("", "").

    A whole number is the same id however a file writes it: 4, 4.0 and "4".
    """
    columns = {column.casefold(): column for column in row}
    for field in ids:
        name, _, key = field.partition(".")
        column = columns.get(name, "")
        value = row.get(column)
        if key:
            value = value.get(key) if isinstance(value, dict) else None
        if text := _text(value):
            return column, text
    return "", ""


def unique(name: str, taken: Container[str], *, number: int) -> str:
    """Return the name, with the number as often after it as makes it another than those taken."""
    while name in taken:
        name = f"{name}-{number}"
    return name


def _text(value: JsonValue) -> str:
    if value is None or value != value:  # tables have NaN where there is nothing
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()
