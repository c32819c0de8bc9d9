"""MRLM's rewards, in the numbers of its table."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task
from rolecall.rewards.mrlm import Code, Maths, Tool
from tests.toy import episode, turn


def paid(reward, answer: str, *, truth=42, score: float | None = None, turns=(), **info) -> float:
    found = episode(0, list(turns), {})
    found.task = Task("x", "?", truth, info)
    found.answer = answer
    if score is not None:
        found.scores["team"] = score
    return asyncio.run(reward(found, World()))["team"]


@pytest.mark.parametrize(
    ("answer", "plain", "with_steps"),
    [
        ("The answer is 42", 1.0, 1.0),
        ("6 * 7 = 42", 1.0, 1.2),
        ("42.00005", 1.0, 1.0),
        ("42.001", 0.0, 0.0),
        ("41", 0.0, 0.0),
        ("so 41", 0.0, 0.2),
        ("no idea", -0.3, -0.3),
        ("something", -0.3, -0.1),
    ],
)
def test_maths(answer, plain, with_steps):
    assert paid(Maths(), answer) == pytest.approx(plain)
    assert paid(Maths(require_solution=True), answer) == pytest.approx(with_steps)
    assert paid(Maths(correct=0.5), "42") == 0.5


@pytest.mark.parametrize(("share", "expected"), [(1.0, 2.0), (0.5, 0.5), (0.0, 0.0)])
def test_code_is_the_share_of_tests_and_one_more_if_all_pass(share, expected):
    assert paid(Code(), "def f(): ...", score=share) == expected


def test_code_without_a_program_pays_for_it():
    found = episode(0, [], {})
    found.scores["team"] = 0.0
    found.count("no_code")
    assert asyncio.run(Code()(found, World())) == {"team": -0.5}


def calling(*names: str, problem: str = ""):
    one = turn("solver", path=(0,))
    made = [{"name": name, "arguments": {}, "result": ""} for name in names]
    one.tools.calls = [call | {"problem": problem} for call in made] if problem else made
    return one


@pytest.mark.parametrize(
    ("turns", "score", "expected"),
    [
        ([calling("calculator"), turn()], 1.0, 0.5 + 0.3 + 0.2 * (1 - 2 / 5)),
        ([calling("calculator"), turn()], 0.0, 0.3),  # pays for a wrong answer
        ([turn()], 1.0, 0.5 + 0.2 * (1 - 1 / 5)),
        ([calling("search"), turn()], 1.0, 0.5 + 0.2 * 0.6),
        ([calling("calculator", problem="unknown"), turn()], 0.0, 0.0),
    ],
)
def test_tools_at_the_end(turns, score, expected):
    found = paid(
        Tool(), "<answer>4</answer>", score=score, turns=turns, required_tools=["calculator"]
    )
    assert found == pytest.approx(expected)


def test_tools_without_an_answer_earn_nothing_and_five_calls_no_more_than_one():
    many = [calling(*["calculator"] * 5)]
    assert paid(Tool(), "four", score=0.0, turns=many, required_tools=["calculator"]) == 0.0
    options = {"score": 0.0, "turns": many, "required_tools": ["calculator"]}
    assert paid(Tool(), "<answer>5</answer>", **options) == 0.3
    two = options | {"required_tools": ["calculator", "search"]}
    assert paid(Tool(), "<answer>5</answer>", **two) == 0.15
