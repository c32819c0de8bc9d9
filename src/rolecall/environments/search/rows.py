"""Reads a file of public question rows and makes tasks of them.

| rows of            | question                                        | truth                     |
|--------------------|-------------------------------------------------|---------------------------|
| Dr. MAS search     | env_kwargs.question                             | env_kwargs.ground_truth   |
| Search-R1, verl    | question, or the user message after "Question:" | reward_model.ground_truth |
| NQ, HotpotQA (raw) | question                                        | golden_answers or answer  |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rolecall.core.json_types import JsonValue
from rolecall.core.types import Task
from rolecall.data.files import Row
from rolecall.data.tasks import IncompleteRowError, is_blank, read_tasks
from rolecall.grading.qa import targets

QUESTIONS = ("env_kwargs.question", "question", "extra_info.question", "prompt")
TRUTHS = ("env_kwargs.ground_truth", "reward_model.ground_truth", "golden_answers", "answer")
SOURCES = ("data_source", "source")
IDS = ("id", "_id", "extra_info.index")
MARK = "Question:"
FOUND_BY_SEARCH = ("context", "passage")  # columns that agents must not see


def search_tasks(
    path: Path, *, source: str | None = None, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Return the tasks of a file, in its order; other columns go to `info`.

    {"id": "test_3", "question": "who wrote emma", "golden_answers": ["Jane Austen"]} ->
    Task("test_3", "who wrote emma?", "Jane Austen", {"source": ...})

    `columns`: the file's names of the columns `question` and `answer`. Rows without question or
    truth are left out, unless most are. Raises ValueError naming file and row.
    """
    label = source or path.name.partition(".")[0]
    return read_tasks(
        path,
        lambda row, name: _task(row, name, source=label),
        ids=IDS,
        unseen=FOUND_BY_SEARCH,
        columns=columns,
    )


def _task(row: Row, name: str, *, source: str) -> Task:
    question, accepted = _question(row), _truth(row)
    used = {field for field in (*QUESTIONS, *TRUTHS, *SOURCES, *IDS) if "." not in field}
    info = {column: value for column, value in row.items() if column not in used}
    info["source"] = str(_first(row, SOURCES) or source)
    return Task(name, question, accepted[0] if len(accepted) == 1 else accepted, info)


def _first(row: Row, fields: Sequence[str]) -> JsonValue:
    """Return the value of the first field that holds something; None if none of them does."""
    for field in fields:
        column, _, key = field.partition(".")
        value = row.get(column)
        if key:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, dict) and "target" in value and is_blank(value["target"]):
            continue
        if not is_blank(value):
            return value
    return None


def _question(row: Row) -> str:
    content = _first(row, QUESTIONS)
    if isinstance(content, list):  # chat messages
        users = [m for m in content if isinstance(m, dict) and m.get("role") == "user"]
        content = users[-1].get("content") if users else None
    if not isinstance(content, str) or not content.strip():
        raise IncompleteRowError(
            f"no question in {', '.join(QUESTIONS)}; columns: {', '.join(row)}"
        )
    question = content.rpartition(MARK)[2].strip()  # what is before it are instructions
    return question if question.endswith("?") else f"{question}?"


def _truth(row: Row) -> list[str]:
    truth = _first(row, TRUTHS)
    if truth is None:
        raise IncompleteRowError(f"no truth in {', '.join(TRUTHS)}; columns: {', '.join(row)}")
    return targets(truth)
