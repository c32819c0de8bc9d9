"""The clipped objective and its normalisers, by known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.base import Outputs
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.losses import clipped_objective
from rolecall.packing import join
from tests.toy import turn


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.3, 1.0, 1.28), (0.7, -1.0, -0.8), (1.3, -1.0, -1.3), (0.7, 1.0, 0.7)],
)
def test_clip_known_answers(ratio, advantage, expected):
    objective, clipped = clipped_objective(
        torch.tensor([math.log(ratio)]),
        torch.zeros(1),
        torch.tensor([advantage]),
        low=0.2,
        high=0.28,
    )
    assert objective.item() == pytest.approx(expected, rel=1e-5)
    assert clipped.item() == (expected != ratio * advantage)


@pytest.mark.parametrize(
    ("agg", "turn_length", "expected"),
    [("token", None, 0.5), ("turn_mean", None, 0.0), ("turn_sum", 10, 0.2)],
)
def test_aggregation_known_answers(agg, turn_length, expected):
    """Turns of 2 and 6 ids, advantages +1 and -1, ratio 1."""
    turns = [
        turn(tokens=[7] * 2, advantage=1.0),
        turn(tokens=[7] * 6, advantage=-1.0, episode="e1"),
    ]
    batch = join(turns)
    outputs = Outputs(torch.from_numpy(batch.old_logprobs.copy()))
    loss = DrMas(agg=agg, turn_length=turn_length).loss(batch, outputs)
    assert loss.total.item() / loss.count == pytest.approx(expected, abs=1e-6)


def test_micro_batch_sums_make_a_mean_not_a_mean_of_means():
    """Token losses [4] and [0, 0, 0] in two micro-batches are 4 / 4, not (4 + 0) / 2."""
    first = join([turn(tokens=[7], advantage=-4.0)])
    second = join([turn(tokens=[7, 7, 7], advantage=0.0)])
    losses = [
        DrMas().loss(b, Outputs(torch.from_numpy(b.old_logprobs.copy()))) for b in (first, second)
    ]
    assert sum(x.total.item() for x in losses) / sum(x.count for x in losses) == 1.0


def test_the_ratio_is_taken_to_the_sampler_where_that_is_the_anchor():
    batch = join([turn(tokens=[7, 7], advantage=1.0)])
    current = torch.from_numpy(batch.old_logprobs + np.float32(math.log(1.5)))
    outputs = Outputs(current)
    free = DrMas().loss(batch, outputs)
    tied = DrMas(anchor="sampler").loss(batch, outputs)
    assert free.total.item() == pytest.approx(-2.0)  # ratio 1 to itself
    assert tied.total.item() == pytest.approx(-2.4, rel=1e-5)  # clipped at 1.2
    assert (free.sums["clip_share"], tied.sums["clip_share"]) == (0.0, 2.0)


def test_weight_multiplies_the_policy_term_only():
    light = turn(tokens=[7, 7], advantage=1.0)
    light.weight = 0.5
    batch = join([light])
    loss = DrMas().loss(batch, Outputs(torch.from_numpy(batch.old_logprobs.copy())))
    assert (loss.total.item(), loss.count) == (-1.0, 2.0)
