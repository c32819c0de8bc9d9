"""Reads a file of public programming rows and makes tasks with hidden tests of them.

| rows of   | told by      | question       | hidden tests                             |
|-----------|--------------|----------------|------------------------------------------|
| HumanEval | entry_point  | prompt         | test                                     |
| MBPP      | test_list    | text or prompt | test_list but its first; that is told    |
| stdin     | inputs       | as for maths   | inputs and outputs, or calls of fn_name  |
| asserts   | assert_case  | as for maths   | assert_case, on fn_name                  |
| cases     | *test_cases  | as for maths   | input and output of each, or calls       |

`inputs` and `outputs` may also stand inside the truth, as JSON: so verl, APPS and TACO have them.
Lists of cases are LiveCodeBench's, DeepCoder's and those of Codeforces (`test_cases.py`).
"""

from __future__ import annotations

import ast
import doctest
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.tags import find_program
from rolecall.core.types import Task
from rolecall.data.files import Row
from rolecall.data.tasks import IncompleteRowError, read_tasks
from rolecall.environments.code.hidden_tests import MOST_PAIRS, Pair, read_pair
from rolecall.environments.code.test_cases import COLUMNS, read_test_cases

QUESTIONS = (
    "question", "question_content", "prompt", "problem", "description", "text", "input",
)  # fmt: skip
TRUTHS = ("reward_model", "ground_truth", "input_output", "answer", "tests")
IDS = ("task_id", "id", "problem_id", "question_id")
SOLUTIONS = ("canonical_solution", "solution", "solutions", "code")
TESTS = ("test", "test_list", "test_imports", "test_setup_code", "inputs", "outputs", "assert_case")
OTHERS = ("entry_point", "fn_name", "canonical_solution", "code")  # known under other names
# Arguments are one JSON value a line; JSON has no tuples, and public outputs are often in a list.
SAME = """
def same(given, expected):
    given = list(given) if isinstance(given, tuple) else given
    return given == expected or (isinstance(expected, list) and [given] == expected)
"""


def code_tasks(path: Path, *, source: str | None = None) -> list[Task]:
    """Return the tasks of a file, in its order.

    `answer` is {"tests": [source, ...]} or {"inputs": [text, ...], "outputs": [text, ...]}; `info`
    holds entry_point ("" for a program that reads and prints), prelude, completes (the prompt is
    the beginning of the program), examples, reference if the row has a solution, and other columns.

    Rows without a question or tests are left out, unless most are. Raises ValueError naming file
    and row for a row that is none of these.
    """
    label = source or path.name.partition(".")[0]
    return read_tasks(path, lambda row, name: _task(row, name, source=label), ids=IDS)


def _task(row: Row, name: str, *, source: str) -> Task:
    try:
        prompt, answer, info = _parts(row)
    except SyntaxError as error:
        raise ValueError(str(error)) from error
    used = {*QUESTIONS, *TRUTHS, *IDS, *TESTS, *COLUMNS, *OTHERS}
    rest = {column: value for column, value in row.items() if column not in used}
    return Task(name, prompt, answer, {"source": source} | rest | info)


def _parts(row: Row) -> tuple[str, dict[str, list[str]], JsonObject]:
    if {"prompt", "entry_point", "test"} <= row.keys():
        return _humaneval(row)
    if row.get("test_list"):
        return _mbpp(row)
    return _pairs(row)


def _humaneval(row: Row) -> tuple[str, dict[str, list[str]], JsonObject]:
    prompt, name = str(row["prompt"]), str(row["entry_point"])
    info: JsonObject = {
        "entry_point": name,
        "prelude": prompt,
        "completes": True,
        "examples": _doctests(prompt, name),
    }
    if row.get("canonical_solution"):
        info["reference"] = prompt + row["canonical_solution"]
    return prompt, {"tests": [str(row["test"])]}, info


def _doctests(prompt: str, name: str) -> list[list[str]]:
    """Return the examples of a docstring whose call and value are literals."""
    try:
        [function] = [
            node
            for node in ast.parse(prompt).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        examples = doctest.DocTestParser().get_examples(ast.get_docstring(function) or "")
    except ValueError:  # a docstring that is laid out in another way
        return []
    lines = [f"{example.source.strip()} == {example.want.strip()}" for example in examples]
    pairs = [read_pair(line, entry_point=name) for line in lines]
    return [[pair.given, pair.expected] for pair in pairs if pair is not None][:MOST_PAIRS]


def _mbpp(row: Row) -> tuple[str, dict[str, list[str]], JsonObject]:
    """Read a row whose text does not name its function; add the header and the first test."""
    text, tests = _question(row), [str(test) for test in row["test_list"]]
    code = str(row.get("code") or "")
    functions = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    called = {
        node.func.id
        for node in ast.walk(ast.parse(tests[0]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    tested = [function for function in functions if function.name in called]
    if not tested:
        raise ValueError("the first test calls no function of `code`")
    header = f"def {tested[0].name}({ast.unparse(tested[0].args)})"
    shown = tests[:1] if len(tests) > 1 else []
    pairs = [read_pair(test.removeprefix("assert "), entry_point=tested[0].name) for test in shown]
    info: JsonObject = {
        "entry_point": tested[0].name,
        "prelude": "\n".join([*(row.get("test_imports") or []), row.get("test_setup_code") or ""]),
        "examples": [[pair.given, pair.expected] for pair in pairs if pair is not None],
        "reference": code,
    }
    prompt = "\n".join([f"{text}\n", f"The function: {header}", *shown])
    return prompt, {"tests": tests[len(shown) :]}, info


def _pairs(row: Row) -> tuple[str, dict[str, list[str]], JsonObject]:
    truth = _truth(row)
    name = str(truth.get("fn_name") or "")
    question, starter = _question(row), str(row.get("starter_code") or "")
    if starter.strip():
        question = f"{question}\n\nBegin with:\n{starter.rstrip()}"
    called = f"Solution().{name}" if "class Solution" in starter else name
    info: JsonObject = {"entry_point": name, "prelude": SAME if name else "", "examples": []}
    if reference := _solution(row):
        info["reference"] = reference
    if truth.get("assert_case"):
        if not name:
            raise ValueError("assert_case without fn_name: whose function is asserted on?")
        return question, {"tests": _list(truth, "assert_case")}, info
    inputs, outputs = _list(truth, "inputs"), _list(truth, "outputs")
    if not inputs and not outputs:
        raise IncompleteRowError("inputs and outputs are empty")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    if not name:
        return question, {"inputs": _texts(inputs), "outputs": _texts(outputs)}, info
    tests = [
        f"assert same({called}(*{_values(arguments)!r}), {_value(expected)!r})"
        for arguments, expected in zip(inputs, outputs, strict=True)
    ]
    return question, {"tests": tests}, info


def _solution(row: Row) -> str | None:
    """Return the first solution of a row if it is a Python program; other languages are not run."""
    for column in SOLUTIONS:
        value = row.get(column)
        if column == "solutions":  # a list, or the JSON of one
            value = _value(value)
            value = value[0] if isinstance(value, list) and value else None
        if isinstance(value, str) and value.strip():
            program = find_program(value) or value
            with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
                ast.parse(program)
                return program
    return None


def _truth(row: Row) -> JsonObject:
    """Return the row itself, or the column of it, that has `inputs` or `assert_case`."""
    for entry in (row, *(row.get(column) for column in TRUTHS)):
        inner = entry.get("ground_truth") if isinstance(entry, dict) else None
        for value in (entry, inner):
            read = _value(value) if isinstance(value, str) else value
            if isinstance(read, dict) and ("inputs" in read or "assert_case" in read):
                return read
    if (cases := read_test_cases(row)) is not None:
        return cases
    raise IncompleteRowError(f"no tests are known by these columns: {', '.join(row)}")


def _question(row: Row) -> str:
    for column in QUESTIONS:
        value = row.get(column)
        if isinstance(value, list):  # chat messages
            users = [m for m in value if isinstance(m, dict) and m.get("role") == "user"]
            value = users[-1].get("content") if users else None
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise IncompleteRowError(f"no question in {', '.join(QUESTIONS)}; columns: {', '.join(row)}")


def _list(found: JsonObject, column: str) -> list[Any]:
    value = found.get(column)
    if not isinstance(value, list):
        raise ValueError(f"{column} must be a list, got {type(value).__name__}")
    return value


def _texts(values: list[JsonValue]) -> list[str]:
    """Text as it is; a list of lines as lines."""
    return [
        "\n".join(map(str, value)) if isinstance(value, list) else str(value) for value in values
    ]


def _values(given: JsonValue) -> list[JsonValue]:
    if isinstance(given, list):
        return given
    return [_value(line) for line in str(given).splitlines() if line.strip()]


def _value(text: JsonValue) -> JsonValue:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_pairs(task: Task) -> list[Pair]:
    """Return the public examples of a task."""
    return [Pair(call, expected) for call, expected in task.info.get("examples", [])]
