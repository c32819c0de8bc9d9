"""A step without a signal says which case it is, and what to change."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Suggestions
from rolecall.core.types import Episode, Task, Turn
from rolecall.monitor.diagnosis import diagnose
from tests.toy import turn


class World:
    suggestions = Suggestions(
        easier="environment.level=1", harder="environment.level=3", lenient="environment.answer=any"
    )

    def demonstrate(self, scene):
        raise AssertionError("nobody asks for it")


def agents(max_tokens: int = 10) -> dict[str, Agent]:
    policy = Policy("p", None, None)  # type: ignore[arg-type]
    sampling = Sampling(max_tokens=max_tokens)
    return {"solver": Agent("solver", policy, "solver", sampling=sampling)}


def attempt(
    number: int, score: float, *, task: str = "a", finish: str = "stop", valid: bool = True,
    length: int = 4, lenient: float | None = None, reward: float | None = None,
) -> Episode:  # fmt: skip
    one: Turn = turn(finish=finish, tokens=range(length), episode=f"{task}:{number}")
    one.valid, one.text = valid, f"words of {task} {number}"
    rewards = {"team": score if reward is None else reward}
    made = Episode(f"{task}:{number}", Task(task, "?"), number, 0, [one], rewards)
    made.scores = {"team": score}
    if lenient is not None:
        made.metrics["answer/lenient"] = lenient
    return made


def group(scores, task="a", **options) -> list[Episode]:
    return [attempt(n, score, task=task, **options) for n, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("groups", "case", "advice"),
    [
        ([group([0, 1])], "signal", ""),
        ([group([0, 0], valid=False)], "unreadable", "rewards.format"),
        ([group([0, 0], finish="length", length=10, valid=False)], "cut off", "max_tokens=40"),
        ([group([0, 0]), group([0, 0], "b")], "all wrong", "environment.level=1"),
        ([group([1, 1]), group([1, 1], "b")], "all right", "environment.level=3"),
        ([group([1, 1]), group([0, 0], "b")], "easy or hopeless", "rollout.curriculum={}"),
        ([group([0.5, 0.5])], "equal partial rewards", "tells attempts at one task apart"),
        ([], "failed", ""),
    ],
)
def test_each_case_is_named_with_what_to_try(groups, case, advice):
    found = diagnose(groups, agents(), World())
    assert found.case == case
    assert advice in "\n".join(found.lines())
    assert found.record()["case"] == case


def test_answers_that_are_right_in_another_form_are_pointed_out_first():
    groups = [group([0, 0, 0, 0], valid=False, lenient=1.0)]
    found = diagnose(groups, agents(), World())
    assert found.shares["right in any form"] == 1.0
    assert found.advice[0].startswith("environment.answer=any (1.00 of the attempts")
    assert any(line.startswith("trainer.warm_start") for line in found.advice)


def test_other_advice_stands_where_the_environment_has_none():
    found = diagnose([group([1, 1])], agents(), object())  # type: ignore[arg-type]
    assert found.advice == ["harder tasks (every task is solved already)"]


def test_the_length_that_keeps_95_percent_is_that_of_a_constant_rate():
    """Lengths of the exponential law: the suggestion is near the law's own 95 % quantile."""
    random, limit, mean = np.random.default_rng(0), 40, 30.0
    groups = []
    for number, length in enumerate(random.exponential(mean, size=2000)):
        cut = length > limit
        one = attempt(
            number,
            0.0,
            finish="length" if cut else "stop",
            length=limit if cut else int(length) + 1,
        )
        groups.append([one])
    found = diagnose(groups, agents(limit), World())
    [line] = [line for line in found.advice if "max_tokens" in line]
    enough = int(line.split("max_tokens=")[1].split()[0])
    assert abs(enough - mean * np.log(20)) < 0.1 * mean * np.log(20)
    assert "cut at 40" in line


def test_three_samples_of_different_tasks_show_what_was_said():
    groups = [group([0, 0], task, valid=task != "a") for task in "abcd"]
    found = diagnose(groups, agents(), World())
    assert [sample.task for sample in found.samples] == ["a", "b", "c"]
    assert "solver on a (ended, not readable, score 0): words of a 0" in "\n".join(found.lines())


def test_attempts_that_differ_in_the_reward_of_a_turn_are_a_signal():
    one, other = group([0, 0])
    other.turns[0].rewards["format"] = 1.0
    assert diagnose([[one, other]], agents(), World()).case == "signal"


def test_attempts_of_different_lengths_that_earn_nothing_are_no_signal():
    one, other = group([0, 0])
    other.turns.append(turn(episode="a:1", path=(1,)))
    assert diagnose([[one, other]], agents(), World()).case == "all wrong"
