"""What a chain and a mixture can pay, played by their workflows."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.rewards.proposals import Proposals
from rolecall.rewards.refined import Refined
from rolecall.workflows.chain import chain
from rolecall.workflows.mixture import mixture
from tests.workflows.teams import SumWorld, play_team

RIGHT, WRONG = "\\boxed{7}", "\\boxed{8}"


@pytest.mark.parametrize(
    ("first", "last", "outcome", "gain"),
    [(WRONG, RIGHT, 1, 1), (RIGHT, WRONG, 0, -1), (RIGHT, RIGHT, 1, 0), (WRONG, WRONG, 0, 0)],
)
def test_who_refines_earns_refined_minus_first(model_folder, first, last, outcome, gain):
    says = {"generator": [first], "verifier": ["Look again."], "refiner": [last]}
    episode = play_team(model_folder, chain, says)
    paid = asyncio.run(Refined()(episode, SumWorld()))
    assert paid == {"generator": outcome, "verifier": gain, "refiner": gain}
    with pytest.raises(ValueError, match="nobody is called 'writer'"):
        asyncio.run(Refined(first="writer")(episode, SumWorld()))


@pytest.mark.parametrize(
    ("own", "right", "wrong"), [(1.0, 1.0, 0.0), (0.25, 0.25, 0.0), (0.0, 0.0, 0.0)]
)
def test_proposers_earn_their_own_answer_the_final_one_or_a_mix(model_folder, own, right, wrong):
    says = {"ann": [RIGHT], "ben": [WRONG], "aggregator": [WRONG]}
    roles = {"ann": "proposer", "ben": "proposer"}
    episode = play_team(model_folder, mixture, says, roles=roles)
    paid = asyncio.run(Proposals(own=own)(episode, SumWorld()))
    assert paid == {"ann": right, "ben": wrong, "aggregator": 0.0}


def test_of_several_layers_a_proposer_earns_the_mean_and_the_rest_is_the_outcome(model_folder):
    says = {"ann": [WRONG, RIGHT], "ben": [WRONG, WRONG], "aggregator": [RIGHT]}
    roles = {"ann": "proposer", "ben": "proposer"}
    episode = play_team(model_folder, mixture, says, roles=roles, options={"layers": 2})
    paid = asyncio.run(Proposals(own=0.5)(episode, SumWorld()))
    assert paid == {"ann": 0.75, "ben": 0.5, "aggregator": 1.0}


def test_a_share_above_one_is_an_error():
    with pytest.raises(ValueError, match=r"own is a share in 0..1, got 1.5"):
        Proposals(own=1.5)
