"""A coder and a tester see what fails, and not one another."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.types import Task
from rolecall.environments.code.environment import CodeWorld, Remembered
from rolecall.sandbox.base import Limits
from rolecall.workflows.coder_tester import coder_tester
from tests.sandbox.places import working_sandbox
from tests.workflows.teams import play_team, shown, turns_of

INFO = {
    "entry_point": "add",
    "examples": [["add(1, 1)", "2"]],
    "reference": "def add(a, b):\n    return a + b",
    "wrong": ["def add(a, b):\n    return a - b"],
}
TASK = Task("add", "Add.", {"tests": ["assert add(2, 5) == 7"]}, INFO)
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "I multiply.\n```python\ndef add(a, b):\n    return a * b\n```"
TESTS = "Hm.\n<tests>\nadd(1, 2) == 3\nadd(0, 0) == 0\n</tests>"


@pytest.fixture(scope="module")
def world():
    sandbox = working_sandbox(concurrency=2)
    yield lambda: CodeWorld(
        TASK, sandbox, ran=Remembered(), limits=Limits(wall_s=30), measure="pass"
    )
    asyncio.run(sandbox.close())


def play(folder, world, codes, tests, **options):
    says = {"coder": codes, "tester": tests}
    return play_team(folder, coder_tester, says, options=options, world=world)


def test_it_ends_when_all_written_tests_pass(model_folder, world):
    episode = play(model_folder, world, [WRONG, RIGHT], [TESTS, TESTS])
    first, second = turns_of(episode, "coder")
    assert "tests fail" not in shown(first)
    assert "add(1, 1) == 2, but it gives 1" in shown(second), "the example"
    assert "add(1, 2) == 3, but it gives 2" in shown(second), "the tester's"
    assert "Hm." not in shown(second)
    [_, again] = turns_of(episode, "tester")
    assert "but it gives 2" in shown(again)
    assert "I multiply" not in shown(again)
    assert episode.answer == RIGHT
    assert episode.scores["team"] == 1.0


@pytest.mark.parametrize(
    ("tests", "worth"),
    [
        (TESTS, 1.0),
        ("<tests>add(0, 0) == 0</tests>", 0.0),  # right, but nothing fails it
        ("<tests>add(1, 2) == 3\nadd(1, 2) == 4</tests>", 0.5),
        ("add(1, 2) == 3", 0.0),
    ],
)
def test_a_tester_earns_right_tests_that_wrong_programs_fail(model_folder, world, tests, worth):
    episode = play(model_folder, world, [WRONG], [tests], max_turns=1)
    [turn] = turns_of(episode, "tester")
    assert turn.world_rewards == {"tests": worth}


def test_without_code_or_tests_it_goes_on_to_the_last_turn(model_folder, world):
    episode = play(model_folder, world, ["none", RIGHT], [TESTS, "none"], max_turns=2)
    assert len(episode.turns) == 4
    assert "There is no fenced python block." in shown(turns_of(episode, "coder")[1])
    assert "There is no code to test." in shown(turns_of(episode, "tester")[1])
    assert [turn.valid for turn in episode.turns] == [False, True, True, False]
    assert episode.scores["team"] == 1.0
