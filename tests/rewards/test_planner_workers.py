"""What MATPO and M-GRPO pay, in numbers."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.rewards.planner_workers import Matpo, MGrpo
from tests.toy import episode, turn


def played(score: float, *, planner: bool = True, calls: tuple[bool, ...] = (True, False)):
    """A planner in form or not, and calls of two workers in turn."""
    plan, last = turn("planner", path=(0,)), turn("planner", path=(9,))
    last.parents, last.valid = (plan.id,), planner
    made = [plan]
    for place, valid in enumerate(calls):
        one = turn(f"worker{place % 2}", path=(place + 1,))
        one.parents, one.valid = (plan.id,), valid
        made.append(one)
    found = episode(0, [*made, last], {})
    found.scores["team"] = score
    return found


def paid(reward, of) -> dict[str, float]:
    return asyncio.run(reward(of, World()))


@pytest.mark.parametrize(
    ("score", "planner", "calls", "expected"),
    [
        (1.0, True, (True, False), 0.975),
        (1.0, True, (True, True), 1.0),
        (0.0, True, (False, False), 0.05),
        (0.0, False, (True, True, True, False), 0.0375),
        (1.0, True, (), 1.0),
        (1.0, False, (), 0.9),
    ],
)
def test_matpo_is_one_scalar_of_accuracy_and_form(score, planner, calls, expected):
    found = paid(Matpo(), played(score, planner=planner, calls=calls))
    assert found == {"team": pytest.approx(expected)}


def test_a_cut_turn_has_no_form():
    of = played(1.0, calls=(True,))
    of.turns[1].finish = "length"
    assert paid(Matpo(), of) == {"team": pytest.approx(0.95)}


def test_turns_of_one_call_with_tools_are_in_form_together():
    of = played(0.0, calls=(False, True, True))
    of.turns[3].parents = (of.turns[1].id,)  # worker0 goes on with its bad call
    assert paid(Matpo(), of) == {"team": pytest.approx(0.05 + 0.025)}


def test_mgrpo_pays_the_planner_and_its_workers_apart():
    of = played(1.0, calls=(True, False, False))
    reward = MGrpo(planner_form=0.25, planner_correct=0.75, worker_form=0.5, worker_planner=0.5)
    assert paid(reward, of) == {"planner": 1.0, "worker0": 0.5, "worker1": 0.5}
    assert [t.rewards for t in of.turns[1:4]] == [{"form": 0.5}, {"form": 0.0}, {"form": 0.0}]
    assert of.turns[0].rewards == {}
    wrong = played(0.0, planner=False)
    assert paid(reward, wrong)["planner"] == 0.0


def test_what_cannot_be_paid_is_an_error():
    of = played(1.0)
    with pytest.raises(ValueError, match=r"nobody is called 'chief'.*planner, worker0, worker1"):
        paid(Matpo(planner="chief"), of)
    del of.scores["team"]
    with pytest.raises(ValueError, match="no score of the team"):
        paid(Matpo(), of)
