"""The reward of the answer that most attempts at a task give, which needs no reference."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.rewards.majority import Majority
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import episode, solo_config, turn


def group(*answers):
    attempts = []
    for number, answer in enumerate(answers):
        one = episode(number, [turn(task="x", episode=f"x:{number}")], {}, task="x")
        one.answer = answer
        attempts.append(one)
    return attempts


@pytest.mark.parametrize(
    ("answers", "earned"),
    [
        ([r"\boxed{\frac12}", r"\boxed{3}", r"so \boxed{0.5}"], [1, 0, 1]),
        ([r"\boxed{3}", r"\boxed{4}"], [1, 0]),
        ([r"\boxed{x+1}", r"\boxed{ x + 1 }", r"\boxed{3}"], [1, 1, 0]),
        (["3", r"\boxed{3}", ""], [0, 1, 0]),
        (["", "none"], [0, 0]),
        ([r"\boxed{1/0}", r"\boxed{2}", r"\boxed{2}"], [0, 1, 1]),
    ],
)
def test_the_answer_of_most_attempts_is_paid_and_the_first_of_a_tie(answers, earned):
    assert [paid["team"] for paid in Majority().pay_group(group(*answers))] == earned


def test_a_team_trains_without_a_reference_answer(model_folder, tmp_path):
    """Nobody boxes an answer here, so nobody is paid, whatever the world scores."""
    config = solo_config(model_folder) | {"rewards": {"majority": 1.0}}
    config["trainer"] = config.get("trainer", {}) | {"steps": 1}
    records = []
    display = Display()
    display.step = records.append
    asyncio.run(trainer_of(config, tmp_path, display).train())
    assert records[0]["reward/majority/team"] == 0.0
    assert records[0]["score"] > 0.0
    assert records[0]["agent/solver/reward"] == 0.0
