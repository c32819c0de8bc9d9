"""The two-step game and XOR, one seed a mixer; `claims` runs them all."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rolecall_lab.proofs.value_games import (
    QMIX,
    TWO_STEP,
    VDN,
    XOR,
    learn_qmix,
    learn_vdn,
    play,
    two_step_claims,
    xor_claims,
)

pytestmark = [pytest.mark.slow, pytest.mark.evidence]


def test_a_sum_settles_for_seven():
    solution = learn_vdn(TWO_STEP, seed=0)
    assert [claim for claim in two_step_claims([solution], VDN) if not claim.ok] == []
    assert [claim.ok for claim in two_step_claims([solution], QMIX)] == [False] * 3


def test_a_monotone_mix_finds_eight():
    solution = learn_qmix(TWO_STEP, seed=0)
    assert [claim for claim in two_step_claims([solution], QMIX) if not claim.ok] == []


def test_one_seed_that_is_off_makes_a_claim_false():
    solution = learn_vdn(TWO_STEP, seed=1)
    off = dataclasses.replace(solution, tables=solution.tables + 0.03)
    assert [claim.ok for claim in two_step_claims([solution, off], VDN)] == [True, False, False]


def test_a_sum_leaves_a_quarter_of_xor_and_no_mix_less_than_a_sixth():
    by_sum, by_mix = xor_claims([learn_vdn(XOR, seed=0)], [learn_qmix(XOR, seed=0)])
    assert by_sum.ok
    assert by_mix.ok


@pytest.mark.parametrize(
    ("first_step", "expected"),
    [([[1.0, 0.0], [0.0, 0.0]], 7.0), ([[0.0, 1.0], [0.0, 0.0]], 8.0)],
)
def test_a_game_is_played_to_its_end(first_step, expected):
    best = torch.tensor([first_step, [[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    assert play(TWO_STEP, best) == expected
