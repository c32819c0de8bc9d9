"""Reads the named columns of a file of rows and makes tasks of them.

A name may lead into a column: `translation.de` is the `de` of each row's `translation`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rolecall.core.json_types import JsonValue
from rolecall.core.types import Task
from rolecall.data.files import Row
from rolecall.data.tasks import IncompleteRowError, is_blank, read_tasks
from rolecall.grading.qa import targets


def text_tasks(
    path: Path,
    *,
    question: str,
    answer: str | None,
    check: Callable[[Task], object] | None = None,
) -> list[Task]:
    """Read the tasks of a file, in its order; columns but question, answer and id go to `info`.

    {"question": "Who wrote Emma?", "answer": ["Jane Austen", "Austen"], "year": 1815} in
    books.jsonl, line 2 -> Task("books-2", "Who wrote Emma?", ["Jane Austen", "Austen"],
    {"year": 1815, "source": "books"}). Without an `answer` column tasks have no answer.

    Rows that lack one are left out, unless most do. Raises ValueError naming file and row for a row
    that `check` refuses.
    """
    source = {"source": path.name.partition(".")[0]}
    used = {column.partition(".")[0] for column in (question, answer, "id") if column}

    def make(row: Row, name: str) -> Task:
        info = {column: value for column, value in row.items() if column not in used}
        task = Task(name, _text(row, question), _accepted(row, answer), source | info)
        if check is not None:
            check(task)
        return task

    return read_tasks(path, make)


def _text(row: Row, column: str) -> str:
    text = _at(row, column)
    if not isinstance(text, str) or not text.strip():
        raise IncompleteRowError(f"no text in {column!r}; columns: {', '.join(row)}")
    return text


def _accepted(row: Row, column: str | None) -> str | list[str] | None:
    if column is None:
        return None
    value = _at(row, column)
    if is_blank(value):
        raise IncompleteRowError(f"nothing in {column!r}; columns: {', '.join(row)}")
    accepted = targets(value)
    return accepted[0] if len(accepted) == 1 else accepted


def _at(row: Row, column: str) -> JsonValue:
    """Return the value at a path of names, which may itself be one column name; None if there is
    none.
    """
    if column in row:
        return row[column]
    value: JsonValue = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
