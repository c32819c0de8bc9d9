"""Rows of LiveCodeBench, DeepCoder, APPS and Codeforces become tasks with hidden tests."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest

from rolecall.environments.code.rows import code_tasks
from rolecall.environments.code.test_cases import read_test_cases

STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]


def pack(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


def read(tmp_path, *rows):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return code_tasks(file)


def test_public_and_compressed_private_cases_of_livecodebench_are_all_hidden_tests(tmp_path):
    more = [{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]
    row = {
        "question_content": "Add.", "question_id": "abc1", "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps(STDIN), "private_test_cases": pack(more),
        "difficulty": "easy",
    }  # fmt: skip
    [task] = read(tmp_path, row)
    assert (task.id, task.prompt, task.info["entry_point"]) == ("abc1", "Add.", "")
    assert task.answer == {"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]}
    assert task.info["difficulty"] == "easy"
    assert "private_test_cases" not in task.info


def test_a_functional_case_calls_the_method_of_the_starter_code(tmp_path):
    starter = "class Solution:\n    def shift(self, nums, by):\n        "
    row = {
        "question_content": "Shift.", "starter_code": starter, "public_test_cases": "[]",
        "metadata": json.dumps({"func_name": "shift"}), "private_test_cases": pack(CALLS),
    }  # fmt: skip
    [task] = read(tmp_path, row)
    assert task.prompt.endswith("Begin with:\nclass Solution:\n    def shift(self, nums, by):")
    assert task.answer == {"tests": ["assert same(Solution().shift(*[[1, 2], 3]), [4, 5])"]}
    program = (
        "class Solution:\n    def shift(self, nums, by):\n        return [n + by for n in nums]"
    )
    scope: dict[str, object] = {}
    exec(f"{program}\n{task.info['prelude']}\n{task.answer['tests'][0]}", scope)


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "Add.", "tests": json.dumps([{"input": "1 2\n", "output": "3\n"}])},
        {"problem": "Add.", "tests": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
        {"question": "Add.", "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
        {"description": "Add.", "official_tests": [{"input": "1 2\n", "output": "3\n"}]},
    ],
    ids=["deepcoder", "deepcoder-taco", "apps", "codeforces"],
)
def test_other_forms_of_cases_are_the_same_task(tmp_path, row):
    [task] = read(tmp_path, row)
    assert (task.prompt, task.answer) == ("Add.", {"inputs": ["1 2\n"], "outputs": ["3\n"]})


class Harm:
    def __reduce__(self):
        return os.system, ("true",)


def test_compressed_cases_that_name_code_are_refused():
    text = base64.b64encode(zlib.compress(pickle.dumps(Harm()))).decode()
    with pytest.raises(ValueError, match=r"private_test_cases .* names posix\.system"):
        read_test_cases({"private_test_cases": text})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"private_test_cases": "!!"}, "private_test_cases is neither JSON nor compressed JSON"),
        ({"public_test_cases": CALLS}, "which function is called"),
    ],
)
def test_cases_that_cannot_be_read_are_named(row, message):
    with pytest.raises(ValueError, match=message):
        read_test_cases(row)
