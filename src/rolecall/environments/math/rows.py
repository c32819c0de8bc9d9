"""Reads a file of public maths rows and makes tasks of them.

| rows of                      | question                     | truth                     |
|------------------------------|------------------------------|---------------------------|
| Dr. MAS                      | env_kwargs.question          | env_kwargs.ground_truth   |
| verl                         | last user message of prompt  | reward_model.ground_truth |
| GSM8K                        | question                     | answer, after ####        |
| MATH, AIME, AMC, MARTI bench | prompt or problem            | answer, or the solution's |
| MARTI train                  | prompt or problem            | answer                    |
| OlympiadBench, DeepMath      | question                     | final_answer              |

How to answer is the team's own to say: the sentence that ends the questions of the set that Dr. MAS
trains on stands in `info["instruction"]` instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rolecall.core.json_types import JsonValue
from rolecall.core.types import Task
from rolecall.data.files import Row
from rolecall.data.tasks import IncompleteRowError, given_id, is_blank, read_tasks
from rolecall.grading.math.answers import extract, references

Result = TypeVar("Result")

QUESTIONS = ("env_kwargs.question", "question", "prompt", "problem", "input", "messages")
TRUTHS = (
    "env_kwargs.ground_truth",
    "reward_model.ground_truth",
    "answer",
    "ground_truth",
    "extracted_groundtruth",
    "final_answer",
    "solution",
)
SOURCES = ("data_source", "source", "env_kwargs.data_source")
IDS = ("id", "unique_id", "problem_id", "extra_info.index")

# "Let's think step by step and output the final answer within \\boxed{}."; some files hold the
# line break before it as a backslash and an n.
INSTRUCTION = re.compile(
    r"(?:\s|\\n)*(let'?s\s+think\s+step\s+by\s+step\s+and\s+output\s+the\s+final\s+answer\s+"
    r"within\s*\\boxed\s*\{\s*\}\s*\.?)\s*\Z",
    re.IGNORECASE,
)
TYPOGRAPHY = re.compile(r"\\[,;:! ]|[\s$.,{}]")


def math_tasks(
    path: Path, *, source: str | None = None, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Read the tasks of a file, in its order; columns but question, truth and id go to `info`.

    {"question": "1 + 1?", "answer": "It is 2.\\n#### 2", "level": 1} in sums.jsonl, line 4 ->
    Task("sums-4", "1 + 1?", "2", {"level": 1, "solution": "It is 2.\\n#### 2", "source": "sums"})

    `columns`: the file's names of the columns `question` and `answer`. Rows without question or
    truth are left out, unless most are. Raises ValueError naming file and row.
    """
    label = source or path.name.partition(".")[0]
    return read_tasks(
        path, lambda row, name: _task(row, name, source=label), ids=IDS, columns=columns
    )


def duplicate_questions(train: Sequence[Task], test: Sequence[Task]) -> list[tuple[str, str]]:
    """Return (train id, test id) of each test task whose question also occurs in train.

    Case, spacing, punctuation and LaTeX grouping are ignored; signs are not. None where all of
    train ask the same, as in games: tasks differ by something else then.
    """
    seen = {normal_question(task.prompt): task.id for task in reversed(train)}
    if len(seen) == 1 < len(train):
        return []
    return [
        (seen[normal_question(task.prompt)], task.id)
        for task in test
        if normal_question(task.prompt) in seen
    ]


def normal_question(question: str) -> str:
    """Equal for questions that differ in case, spacing, punctuation or LaTeX grouping only."""
    return TYPOGRAPHY.sub("", question.casefold())


def _task(row: Row, name: str, *, source: str) -> Task:
    columns = {column.casefold(): column for column in row}  # AIME on the hub writes Problem
    question_at, question = _first(row, columns, QUESTIONS, read=_question)
    truth_at, truth = _first(row, columns, TRUTHS, read=_truth)
    source_at, stated = _first(row, columns, SOURCES, read=_name)
    id_at, _ = given_id(row, IDS)
    if question is None:
        raise IncompleteRowError(
            f"no question in {', '.join(QUESTIONS)}; columns: {', '.join(row)}"
        )
    if truth is None:
        raise IncompleteRowError(f"no truth in {', '.join(TRUTHS)}; columns: {', '.join(row)}")
    used = {question_at, truth_at, source_at, "" if id_at == "extra_info" else id_at}
    info = {column: value for column, value in row.items() if column not in used}
    if truth_at.casefold() == "solution" or "####" in str(row[truth_at]):
        info["solution"] = row[truth_at]  # the truth was only its end
    info["source"] = stated or source
    if (ending := INSTRUCTION.search(question)) and ending.start():
        question, info["instruction"] = question[: ending.start()], ending[1]
    return Task(name, question, truth[0] if len(truth) == 1 else truth, info)


def _first(
    row: Row,
    columns: dict[str, str],
    fields: Sequence[str],
    *,
    read: Callable[[JsonValue, str], Result | None],
) -> tuple[str, Result | None]:
    """Return (column, value) of the first field that `read` can read, else ("", None)."""
    for field in fields:
        column, _, key = field.partition(".")
        value = row.get(columns.get(column, ""))
        if key:
            value = value.get(key) if isinstance(value, dict) else None
        result = None if value is None else read(value, column)
        if result is not None:
            return columns[column], result
    return "", None


def _question(value: JsonValue, column: str) -> str | None:
    if isinstance(value, list):
        users = [m for m in value if isinstance(m, dict) and m.get("role") == "user"]
        value = users[-1].get("content") if users else None
    return value if isinstance(value, str) and value.strip() else None


def _truth(value: JsonValue, column: str) -> list[str] | None:
    if column == "solution":
        value = extract(value) if isinstance(value, str) else None
    if is_blank(value):
        return None
    return references(value)


def _name(value: JsonValue, column: str) -> str | None:
    return str(value).strip() or None
