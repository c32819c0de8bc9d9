"""What answers earn by themselves, and by the answers before them."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.rewards.own_answers import OwnAnswers
from rolecall.workflows.chain import chain
from rolecall.workflows.majority_vote import majority_vote
from tests.workflows.teams import SumWorld, play_team

RIGHT, WRONG = "\\boxed{7}", "\\boxed{8}"


def paid(folder, flow, says, reward, **rest) -> list[tuple[str, float]]:
    episode = play_team(folder, flow, says, **rest)
    assert asyncio.run(reward(episode, SumWorld())) == {}
    return [(turn.agent, pytest.approx(turn.paid)) for turn in episode.turns]


@pytest.mark.parametrize(
    ("reward", "earned"),
    [
        (OwnAnswers(), [1, 0, 0]),
        (OwnAnswers(alpha=0.5), [1, -0.5, -0.25]),
        (OwnAnswers("quality", alpha=0.5), [1, 0, -0.25]),
        (OwnAnswers(alpha=0.5, final=0.5), [1, -0.5, -0.25]),
    ],
)
def test_a_chain_is_paid_answer_by_answer(model_folder, reward, earned):
    says = {"generator": [RIGHT], "verifier": ["Look again."], "refiner": [WRONG]}
    amounts = dict(paid(model_folder, chain, says, reward))
    assert [amounts[name] for name in says] == earned


def test_a_debater_is_compared_with_all_answers_of_the_rounds_before(model_folder):
    says = {"a": [RIGHT, RIGHT], "b": [WRONG, RIGHT], "c": [WRONG, WRONG]}
    amounts = paid(
        model_folder, majority_vote, says, OwnAnswers(alpha=0.3, final=0.5),
        roles=dict.fromkeys("abc", "debater"), options={"earns": "outcome"},
    )  # fmt: skip
    by_agent = {name: [amount for agent, amount in amounts if agent == name] for name in says}
    better = 1 + 0.3 * (1 - 1 / 3) + 0.5
    assert by_agent == {"a": [1.5, better], "b": [0.5, better], "c": [0.0, -0.1]}


def test_a_negative_factor_is_an_error():
    with pytest.raises(ValueError, match="alpha and final are at least 0, got -1 and 0"):
        OwnAnswers(alpha=-1, final=0)


def test_an_executor_is_paid_for_what_its_program_printed(model_folder):
    episode = play_team(model_folder, chain, {"generator": [WRONG], "verifier": [RIGHT],
                                              "refiner": [RIGHT]})  # fmt: skip
    generator, verifier, refiner = episode.turns
    generator.observation, refiner.observation = " 7\n", "Traceback: no such name"
    reward = OwnAnswers(printed=("generator", "verifier", "refiner"))
    assert asyncio.run(reward(episode, SumWorld())) == {}
    assert [turn.paid for turn in (generator, verifier, refiner)] == [1.0, 0.0, 0.0]
