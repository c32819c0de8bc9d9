"""Notices what is odd about a file as a whole: columns that nobody sees, and equal questions.

A question without its options, its passage or its image is another question, and a question that
is the same in most rows is probably a system prompt. Both train without an error.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from rolecall.core.json_types import JsonValue
from rolecall.core.types import Task
from rolecall.data.files import Row

notices = logging.getLogger("rolecall.notices")

TRUTHS = ("label", "labels")
MESSAGES = ("messages", "conversations")
IMAGES = ("image", "images")
# Columns of public data sets that change what a row means.
MEANING = frozenset(
    ("options", "choices", "body", "context", "passage", *TRUTHS, *MESSAGES, *IMAGES)
)
MOST_SHOWN = 60  # characters of a question in a message


class FileCheck:
    """Looks at each row of a file and its task, and reports in a line each what is odd."""

    def __init__(self, path: Path, *, unseen: Collection[str] = ()) -> None:
        """`unseen`: columns that agents are not meant to see."""
        self.path = path
        self.columns = MEANING - frozenset(unseen)
        self.num_rows = 0
        self.unused: Counter[str] = Counter()  # rows by column
        self.questions: Counter[str] = Counter()

    def add(self, row: Row, task: Task) -> None:
        self.num_rows += 1
        self.questions[task.prompt] += 1
        for column, value in row.items():
            if (kind := column.casefold()) in self.columns and not _is_used(kind, value, task):
                self.unused[column] += 1

    def report(self) -> None:
        if self.unused:
            columns = ", ".join(f"`{name}` ({count})" for name, count in self.unused.items())
            notices.warning(
                "%s: columns that are not used, with their rows: %s. Agents see the question "
                "alone, and answers are compared with the truth alone: write what belongs to the "
                "question into it",
                self.path,
                columns,
            )
        question, count = self.questions.most_common(1)[0] if self.questions else ("", 0)
        if count > max(2, self.num_rows / 2):
            shown = question if len(question) <= MOST_SHOWN else question[: MOST_SHOWN - 3] + "..."
            notices.warning(
                "%s: %d of %d rows ask the same question: %r. If the question stands in another "
                "column, call that one `question`",
                self.path,
                count,
                self.num_rows,
                shown,
            )


def _is_used(kind: str, value: JsonValue, task: Task) -> bool:
    """Return whether all that a column says is in the question, or, for a label, in the truth."""
    if kind in IMAGES:
        return not value
    texts = [text for text in map(_squeezed, _texts(value)) if text]
    question = _squeezed(task.prompt)
    if kind in MESSAGES:  # a conversation about the question, maybe with instructions around it
        return not texts or texts[-1] in question or question in texts[-1]
    if kind in TRUTHS:
        return {*texts} <= {*map(_squeezed, _texts(task.answer))}
    return all(text in question for text in texts)


def _texts(value: JsonValue) -> Iterator[str]:
    """Yield what a value of a column says; of messages, what the user says."""
    if isinstance(value, str):
        if value.lstrip()[:1] in ("[", "{"):
            with suppress(ValueError):
                value = json.loads(value)
        if isinstance(value, str):
            yield value
            return
    if isinstance(value, dict):
        role = value.get("role", value.get("from"))
        if isinstance(role, str) and ("content" in value or "value" in value):
            value = [value.get("content", value.get("value"))] if role in ("user", "human") else []
        else:
            value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, (int, float)) and value == value:
        yield str(value)


def _squeezed(text: str) -> str:
    return " ".join(text.split())
