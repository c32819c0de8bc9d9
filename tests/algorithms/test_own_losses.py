"""Algorithms of a user: which loss they name, and losses of their own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from pydantic import Field, ValidationError

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import ImitationLoss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.interfaces.algorithm import Loss
from rolecall.core.types import spread
from rolecall.training.algorithm_group import group_agents
from tests.algorithms.small import Unigram, algorithm, floats, one_batch, singles
from tests.toy import turn


class Totals(Algorithm):
    """Credit alone: what an episode earned, less a constant."""

    less: float = 0.5

    def credit(self, episodes):
        for episode, one in self.credited_turns(episodes):
            one.advantages = spread(one, episode.total(one) - self.less)


class Clipped(ClippedLoss, Totals):
    pass


class SoftLoss(ClippedLoss):
    softness: float = Field(0.5, ge=0, le=1)
    dual_clip: ClassVar[None] = None

    def objective(self, logprobs, anchor, advantages, batch):
        gains, clipped = super().objective(logprobs, anchor, advantages, batch)
        return gains.where(~clipped, gains * self.softness), clipped


class Soft(SoftLoss, Grpo):
    pass


class Counted(ImitationLoss, Totals):
    """A loss that is replaced as a whole."""

    def loss(self, batch, outputs):
        return Loss(outputs.logprobs.sum(), float(batch.mask.sum()))


def clipped_batch():
    """One turn of which the first token's ratio is e, and the second's 1."""
    one = turn(tokens=[3, 4])
    one.logprobs = one.training.prox_logprobs = floats([-1, -1])
    one.advantages = floats([1, 1])
    batch = one_batch([one], Grpo())
    outputs = Unigram(np.zeros(9)).forward(batch)
    outputs.logprobs = outputs.logprobs.detach() * 0 - 1
    outputs.logprobs[batch.mask.nonzero()[0][0]] = 0.0
    return batch, outputs


def test_credit_and_a_loss_are_an_algorithm():
    episodes = singles([1.0, 0.0])
    Clipped(less=0.25).credit(episodes)
    assert [e.turns[0].advantages[0] for e in episodes] == [0.75, -0.25]
    batch, outputs = clipped_batch()
    assert Clipped(agg="token").loss(batch, outputs) == Grpo(agg="token").loss(batch, outputs)


def test_without_a_loss_the_error_writes_the_line_to_use():
    with pytest.raises(ValidationError, match=r"`class Totals\(ClippedLoss, Algorithm\)`"):
        Totals()


def test_an_own_objective_has_its_options_beside_those_of_credit():
    batch, outputs = clipped_batch()
    assert Soft(softness=1.0).loss(batch, outputs).total.item() == pytest.approx(-2.2 / 2)
    assert Soft().loss(batch, outputs).total.item() == pytest.approx(-1.6 / 2)
    assert (Soft().agg, type(Soft)("Softer", (Soft,), {})().agg) == ("turn_mean", "turn_mean")
    assert "softness" in Soft.loss_fields()
    assert not {"mean", "std", "count"} & Soft.loss_fields()
    assert len(group_agents({"a": Soft(), "b": Soft(softness=0.1)})) == 1
    assert len(group_agents({"a": Soft(), "b": Soft(std="none")})) == 2


def test_a_loss_may_be_replaced_as_a_whole():
    batch, outputs = clipped_batch()
    assert Counted().loss(batch, outputs).count == 2.0
    assert (Counted().entropy, Counted().target_kl, Counted().needs_prox) == (0.0, None, False)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (Soft, "dual_clip", 3.0),
        (Counted, "clip_low", 0.1),
        (type(algorithm("marft")), "agg", "token"),
        (type(algorithm("a2c")), "clip_high", 0.1),
        (type(algorithm("sft")), "per_family", True),
    ],
)
def test_an_option_that_a_loss_does_not_have_is_named(kind, key, value):
    with pytest.raises(ValidationError, match=f"{key} has no effect: {kind.__name__}'s loss does"):
        kind(**{key: value})
