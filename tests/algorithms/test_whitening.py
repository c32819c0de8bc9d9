"""Advantages of task families: each with mean 0 and spread 1, none drowned by another."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.whitening import whiten_families
from tests.toy import turn

FAMILIES = {"x": "sums", "y": "claims"}


def credited(*values: float, task: str = "x", length: int = 1) -> list:
    return [turn(task=task, tokens=[7] * length, advantage=value) for value in values]


def test_families_of_unlike_sizes_become_alike():
    """The known answer: [2, -2] and [.2, -.2] of one id each all become +-.7071."""
    turns = [*credited(2, -2), *credited(0.2, -0.2, task="y")]
    whiten_families(turns, FAMILIES)
    found = [float(t.advantages[0]) for t in turns]
    assert found == pytest.approx([0.707106, -0.707106] * 2, abs=2e-6)


def test_every_id_counts_once():
    """1 on three ids and 0 on one: mean .75, spread .5, so .5 and -1.5."""
    turns = [*credited(1, length=3), *credited(0)]
    whiten_families(turns, FAMILIES)
    assert turns[0].advantages.tolist() == pytest.approx([0.5] * 3, abs=2e-6)
    assert turns[1].advantages.tolist() == pytest.approx([-1.5], abs=4e-6)


@pytest.mark.parametrize("values", [(0.9, 0.9, 0.9), (0.0, 0.0), (1.5,)])
def test_a_constant_family_becomes_0_and_moves_no_other(values):
    alone, other = credited(2, -1), credited(*values, task="y")
    beside = credited(2, -1)
    whiten_families(alone, FAMILIES)
    whiten_families([*other, *beside], FAMILIES)
    assert all(not np.any(t.advantages) for t in other)
    assert [t.advantages.tolist() for t in beside] == [t.advantages.tolist() for t in alone]


def test_it_is_an_option_of_every_algorithm_whose_loss_reads_advantages():
    assert not Grpo().per_family
    assert Grpo(per_family=True).per_family
    with pytest.raises(ValueError, match="per_family has no effect"):
        Dpo(per_family=True)
