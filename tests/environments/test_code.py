"""Programs are scored by tests that they never see; what is shown are the public examples."""

from __future__ import annotations

import ast
import asyncio
import json
import logging

import pytest

from rolecall.core.types import Episode, Task
from rolecall.environments.code.environment import CodeEnvironment, CodeWorld, Remembered
from rolecall.environments.code.generated import GeneratedCode
from rolecall.environments.code.hidden_tests import Pair, read_pair
from rolecall.environments.code.rows import code_tasks
from rolecall.sandbox.base import Limits
from rolecall.storage.episode_io import from_json, to_json
from tests.sandbox.places import working_sandbox
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

KINDS = ("function", "stdin")


@pytest.fixture(scope="module")
def sandbox():
    shared = working_sandbox(concurrency=2)
    yield shared
    asyncio.run(shared.close())


def fence(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\n"


def world_of(sandbox, task: Task, measure="pass") -> CodeWorld:
    return CodeWorld(task, sandbox, ran=Remembered(), limits=Limits(wall_s=30), measure=measure)


def scores(sandbox, tasks, answers, measure="pass", **notes) -> list[float]:
    async def score(task, answer):
        episode = Episode("e", task, 0, 0, answer=answer, **notes)
        return (await world_of(sandbox, task, measure).score(episode))["team"]

    async def main():
        return await asyncio.gather(*map(score, tasks, answers))

    return asyncio.run(main())


def step(world, *actions):
    async def main():
        return [await world.step("someone", action) for action in actions]

    return asyncio.run(main())


# --- generated problems ---


@pytest.mark.parametrize("number", leave_to_evidence([4, 12], keep=[4]))
def test_references_of_generated_problems_score_1_and_wrong_programs_0(sandbox, number):
    tasks = GeneratedCode("train", level=3, kinds=KINDS)[:number]
    assert {task.info["source"] for task in tasks} == {*KINDS}
    assert (
        scores(sandbox, tasks, [fence(task.info["reference"]) for task in tasks]) == [1.0] * number
    )
    for wrong in (0, 1):
        answers = [fence(task.info["wrong"][wrong]) for task in tasks]
        assert scores(sandbox, tasks, answers) == [0.0] * number


def test_generated_problems_are_the_same_again_and_no_text_is_in_both_splits():
    splits = [GeneratedCode(split, level=2, kinds=KINDS)[:200] for split in ("train", "test")]
    assert splits[0] == GeneratedCode("train", level=2, kinds=KINDS)[:200]
    train, test = ({task.info["text"] for task in tasks} for tasks in splits)
    assert not train & test
    assert len(train) > 190


def test_no_hidden_test_is_in_a_prompt():
    for task in GeneratedCode("train", level=2, kinds=KINDS)[:200]:
        pairs = [f"{given} == {expected}" for given, expected in task.answer.get("pairs", [])]
        hidden = pairs or [repr(text[:-1]) for text in task.answer["inputs"]]
        assert not any(test in task.prompt for test in hidden)
        assert task.info["reference"] not in task.prompt
        assert all(f"{given} == {value}" in task.prompt for given, value in task.info["examples"])


def test_a_task_comes_back_from_the_journal_as_it_was():
    for task in GeneratedCode("train", level=2, kinds=KINDS)[:4]:
        assert from_json(to_json(Episode("e", task, 0, 0))).task == task


# --- rows ---


def test_solutions_of_humaneval_score_1_and_none_of_another_does(shared, sandbox):
    tasks = code_tasks(shared / "data/HumanEval.jsonl.gz")
    assert len(tasks) == 164
    assert not any(task.answer["tests"][0] in task.prompt for task in tasks)
    some = tasks[::20]  # test_verdict.py runs all of them
    bodies = [fence(task.info["reference"].removeprefix(task.prompt)) for task in some]
    assert scores(sandbox, some, bodies) == [1.0] * len(some)
    alone = [fence(task.info["reference"]) for task in some]
    assert scores(sandbox, some[:3], alone[:3]) == [1.0] * 3
    assert scores(sandbox, some, [fence("    return None")] * len(some)) == [0.0] * len(some)


def test_docstrings_of_humaneval_become_examples(shared, sandbox):
    [task] = [t for t in code_tasks(shared / "data/HumanEval.jsonl.gz") if t.id == "HumanEval/0"]
    assert task.info["examples"][0] == ["has_close_elements([1.0, 2.0, 3.0], 0.5)", "False"]
    world = world_of(sandbox, task)
    right, wrong = step(world, fence(task.info["reference"]), fence("    return True"))
    assert (right.team, right.done, right.text) == (1.0, True, "All 2 tests pass.")
    assert (wrong.team, wrong.done) == (0.5, False)
    assert "0.5) == False, but it gives True" in wrong.text


MBPP = {
    "task_id": 2,
    "text": "Write a function to add.",
    "code": "def half(x):\n    return x / 2\ndef plus(a, b=1):\n    return a + b",
    "test_setup_code": "ONE = 1",
    "test_list": ["assert plus(1, 2) == 3", "assert plus(5) == 5 + ONE", "assert plus(0, 0) == 0"],
}
STDIN = {"question": "Double it.", "level": "easy", "inputs": ["1\n", "2"], "outputs": ["2", "4\n"]}
CALLS = {
    "prompt": [{"role": "user", "content": "Both, the other way round."}],
    "reward_model": {
        "ground_truth": '{"fn_name": "swap", "inputs": ["1\\n2"], "outputs": ["[2, 1]"]}'
    },
}
CASES = {"problem": "Write one().", "fn_name": "one", "assert_case": ["assert one() == 1"]}


def rows(folder, *given) -> list[Task]:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, given)))
    return code_tasks(path)


def test_rows_of_public_data_sets_are_scored_by_their_tests(tmp_path, sandbox):
    tasks = rows(tmp_path, MBPP, STDIN, CALLS, CASES)
    right = [
        "def plus(a, b=1):\n    return a + b", "print(int(input()) * 2)",
        "class Solution:\n    def swap(self, a, b):\n        return b, a",
        "def one():\n    return 1",
    ]  # fmt: skip
    wrong = [
        "def plus(a, b=1):\n    return a", "print(int(input()) + 1)",
        "def swap(a, b):\n    return a, b", "def one():\n    return 2",
    ]  # fmt: skip
    assert scores(sandbox, tasks, map(fence, right)) == [1.0] * 4
    assert scores(sandbox, tasks, map(fence, wrong)) == [0.0] * 4
    assert scores(sandbox, tasks, map(fence, wrong), "share") == [0.5, 0.5, 0.0, 0.0]
    assert tasks[1].info["level"] == "easy", "other columns are kept"
    assert [task.prompt for task in tasks[1:]] == [
        "Double it.",
        "Both, the other way round.",
        "Write one().",
    ]


def test_programs_are_scored_in_any_fence_and_whatever_ends_their_lines(tmp_path, sandbox):
    row = {"question": "Sort.", "inputs": ["3\n3 1 2\n"]}
    outputs = ("1 2 3\r\n", "1 2 3 \n", "1 2 3", "1 2 4")
    tasks = rows(tmp_path, *(row | {"outputs": [output]} for output in outputs))
    code = "n = int(input())\nprint(*sorted(map(int, input().split())), end=' \\n')"
    assert scores(sandbox, tasks, [fence(code)] * 4) == [1.0, 1.0, 1.0, 0.0]
    listed = "- " + fence(code).partition("\n")[2].replace("\n", "\n  ")
    answers = [fence(code).replace("python", mark) for mark in ("python3", "Python", "")]
    assert scores(sandbox, tasks[:1] * 4, [*answers, listed]) == [1.0] * 4
    pairs = step(world_of(sandbox, tasks[0]), fence(code), "<tests>'1\\n2' == '2\\r\\n'</tests>")
    assert pairs[1].text == "All 1 tests pass."


def test_references_that_fail_their_own_tests_are_counted_before_a_run(tmp_path, caplog):
    working_sandbox()
    good = "print(int(input()) * 2)"
    given = [
        MBPP,
        MBPP | {"task_id": 3, "code": "def plus(a, b=1):\n    return a"},
        STDIN | {"id": "right", "solutions": json.dumps([good, "print(0)"])},
        STDIN | {"question": "Twice?", "id": "wrong", "solution": fence("print(0)")},
        STDIN | {"id": "another language", "solutions": ["int main() { return 0; }"]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, given)))
    environment = CodeEnvironment(train=str(path), wall_s=30.0)
    with caplog.at_level(logging.WARNING, logger="rolecall.notices"):
        tasks = environment.tasks("train")
    assert [task.info.get("reference") for task in tasks[2:]] == [good, "print(0)\n", None]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 2 of the 4 reference solutions that were run fail their own tests, so no "
        "program may pass these here; the first is 3"
    ]


def test_references_are_not_run_where_no_program_can_be_run(tmp_path, monkeypatch, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(MBPP))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(CodeEnvironment(train=str(path)).tasks("train")) == 1
    assert caplog.records == []


def test_an_mbpp_prompt_shows_the_header_and_one_test(tmp_path):
    [task] = rows(tmp_path, MBPP)
    assert task.prompt == (
        "Write a function to add.\n\nThe function: def plus(a, b=1)\nassert plus(1, 2) == 3"
    )
    assert task.answer == {"tests": MBPP["test_list"][1:]}
    assert task.info["examples"] == [["plus(1, 2)", "3"]]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "x"}, "no tests are known by these columns: question"),
        ({"inputs": ["1"], "outputs": ["1"]}, "no question"),
        ({"question": "x", "inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"question": "x", "inputs": [], "outputs": []}, "inputs and outputs are empty"),
        ({"question": "x", "inputs": ["1"]}, "outputs must be a list, got NoneType"),
        ({"question": "x", "inputs": "1", "outputs": "2"}, "inputs must be a list, got str"),
        ({"text": "x", "test_list": ["assert f(1)"], "code": "g = 1"}, "calls no function"),
    ],
)
def test_a_row_without_tests_is_named_with_its_line(tmp_path, row, told):
    with pytest.raises(ValueError, match=f"jsonl:2: .*{told}"):
        rows(tmp_path, STDIN, row, row)


# --- the world ---


def test_an_answer_without_code_or_that_was_cut_scores_0(tmp_path, sandbox):
    task = rows(tmp_path, STDIN)[0]
    right = fence("print(int(input()) * 2)")
    assert scores(sandbox, [task], [right]) == [1.0]
    assert scores(sandbox, [task], [right], is_truncated=True) == [0.0]
    assert scores(sandbox, [task], ["print(int(input()) * 2)"]) == [0.0]
    assert scores(sandbox, [task], [f"<think>{right}</think> no"]) == [0.0]


def test_a_sandbox_that_fails_is_an_error_and_no_score(tmp_path):
    broken = working_sandbox(concurrency=1)
    asyncio.run(broken.close())
    task = rows(tmp_path, STDIN)[0]
    with pytest.raises(RuntimeError, match="shutdown"):
        scores(broken, [task], [fence("print(2)")])


@pytest.mark.parametrize(
    ("line", "name", "pair"),
    [
        ("add(1, [2]) == (3, 'a')", "add", Pair("add(1, [2])", "(3, 'a')")),
        ("'1 2' == '3'", "", Pair("'1 2'", "'3'")),
        ("add(x) == 3", "add", None),
        ("add(1) == open('x')", "add", None),
        ("other(1) == 3", "add", None),
        ("add(1) != 3", "add", None),
        ("add(1)", "add", None),
        ("1 == '3'", "", None),
        ("(" * 1000, "add", None),
    ],
)
def test_a_test_is_a_call_and_a_literal_and_nothing_else(line, name, pair):
    assert read_pair(line, entry_point=name) == pair


def test_any_literal_can_be_asked_for(sandbox, tmp_path):
    [task] = rows(tmp_path, CASES | {"fn_name": "same"})
    code = fence("def same(value):\n    return value")
    values = ("-1e999", "(1, [2])", "{'a': {3}}", "b'x'", "0.1", "None", "'\\n'")
    tests = "\n".join(f"same({value}) == {value}" for value in values)
    _, seen = step(world_of(sandbox, task), code, f"<tests>{tests}</tests>")
    assert seen.text == "All 7 tests pass."


def by_kind(kind) -> Task:
    return GeneratedCode("train", level=2, kinds=[kind])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_written_tests_are_run_on_the_newest_code_and_earn_what_they_are_worth(sandbox, kind):
    task = by_kind(kind)
    right = [f"{given} == {value}" for given, value in task.info["examples"]]
    if kind == "function":
        right += [f"{given} == {value}" for given, value in task.answer["pairs"]]
    else:
        hidden = zip(task.answer["inputs"], task.answer["outputs"], strict=True)
        right += [f"{given.strip()!r} == {value!r}" for given, value in hidden]
    given, value = right[0].split(" == ")
    false = f"{given} == {ast.literal_eval(value)!r}1" if kind == "function" else f"{given} == 'x'"
    tests = "\n".join(right)
    world = world_of(sandbox, task)
    none, _, epochs, mixed, unread, _, fails = step(
        world,
        f"<tests>{tests}</tests>",
        fence(task.info["reference"]),
        f"<tests>{tests}</tests>",
        f"<tests>{right[0]}\n{false}</tests>",
        "<tests>it works</tests>",
        fence(task.info["wrong"][0]),
        f"<tests>{tests}</tests>",
    )
    assert (none.text, none.done, none.reward) == ("There is no code to test.", False, 1.0)
    assert (epochs.text, epochs.done, epochs.reward) == ("All 10 tests pass.", True, 1.0)
    assert not mixed.done
    assert mixed.reward <= 0.5, "half of the tests are false"
    assert f"{false}, but it " in mixed.text
    assert (unread.done, unread.reward) == (False, 0.0)
    assert not fails.done
    assert fails.reward == 1.0, "what the coder does is not the tester's"


def test_hidden_tests_and_references_are_in_no_observation(sandbox):
    task = by_kind("function")
    told = [seen.text for seen in step(world_of(sandbox, task), fence("x = 1"), "no code")]
    for given, value in task.answer["pairs"]:
        assert not any(f"{given} == {value}" in text for text in told)
    assert "tests fail" in told[0]
    assert told[1] == "There is no fenced python block."


def test_programs_that_answer_strangely_are_told_in_few_words(sandbox):
    task = by_kind("function")
    name = task.info["entry_point"]
    tests = "\n".join(f"{name}([{n}]) == 1" for n in range(20))
    body = f"def {name}(values):\n    return '\\\\\"\\u00e9' * 5000"
    world = world_of(sandbox, task)
    _, seen = step(world, fence(body), f"<tests>{tests}</tests>")
    assert seen.text.startswith("10 of 10 tests fail:"), "no more are run"
    assert len(seen.text) < 2500
    error = f"class {'E' * 3000}(Exception): pass\ndef {name}(values):\n    raise {'E' * 3000}"
    _, seen = step(world, fence(error), f"<tests>{tests}</tests>")
    assert seen.text.count("raises EEE") == 10


# --- the environment ---


def test_the_environment_opens_worlds_and_closes_their_sandbox(sandbox):
    async def main():
        environment = CodeEnvironment(level=1, test_size=3, wall_s=30, score="share")
        found = []
        for task in environment.tasks("test"):
            episode = Episode("e", task, 0, 0, answer=fence(task.info["reference"]))
            found.append(await environment.open(task, seed=0).score(episode))
        await environment.close()
        return found

    assert asyncio.run(main()) == [{"team": 1.0}] * 3


def test_options_without_effect_are_errors():
    for options in ({"level": 2}, {"kinds": ["stdin"]}, {"test_size": 3}):
        with pytest.raises(ValueError, match="no effect"):
            CodeEnvironment(train="a", test="b", **options)
    with pytest.raises(ValueError, match="level must be"):
        CodeEnvironment(level=9)


def test_the_environment_offers_its_sources(tmp_path, sandbox):
    rows(tmp_path, MBPP, STDIN)
    path = str(tmp_path / "rows.jsonl")
    environment = CodeEnvironment(train="generated", test=[path, "generated"], test_size=3)
    ids = [task.id for task in environment.tasks("test")]
    assert ids[:2] == ["rows/2", "rows/rows-2"]
    assert len(ids) == len(set(ids)) == 5
    assert len(environment.tasks("train")) > 10**6


def test_tasks_that_share_an_id_keep_their_own_tests(sandbox):
    """Ids are unique within a source and a split only."""

    def task(expected: int) -> Task:
        hidden = {"tests": [f"assert f(2) == {expected}"]}
        return Task("11", "Double.", hidden, {"entry_point": "f"})

    remembered = Remembered()

    async def score(expected: int) -> float:
        world = CodeWorld(
            task(expected), sandbox, ran=remembered, limits=Limits(wall_s=30), measure="pass"
        )
        answer = fence("def f(x):\n    return 2 * x")
        return (await world.score(Episode("e", world.task, 0, 0, answer=answer)))["team"]

    async def main():
        return [await score(4), await score(5)]

    assert asyncio.run(main()) == [1.0, 0.0]
