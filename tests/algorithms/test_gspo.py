"""One ratio for an utterance: its value, its gradient, and where it is GRPO."""

from __future__ import annotations

import math

import pytest
import torch

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.gspo import Gspo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import pack
from tests.algorithms.small import Unigram, annotated, floats, one_batch
from tests.algorithms.test_rules import random_turns
from tests.toy import turn


def one_turn(d: list[float], advantage: float = 1.0):
    """logprobs - anchor = d."""
    made = turn(tokens=[7] * len(d))
    made.logprobs = made.training.prox_logprobs = floats([-1.0] * len(d))
    made.advantages, made.returns, made.training.values = (
        floats([advantage] * len(d)) for _ in range(3)
    )
    logprobs = torch.tensor([0.0] * len(made.prompt) + [-1.0 + x for x in d], requires_grad=True)
    return made, logprobs


def objective_of(rule: Gspo, made, logprobs):
    """What is maximised, and its gradient by token."""
    loss = rule.loss(one_batch([made], rule), Outputs(logprobs))
    loss.total.backward()
    return -float(loss.total.detach()), (-logprobs.grad[len(made.prompt) :]).tolist()


def test_known_answer_of_the_ratio_and_its_gradient():
    """d = [.1, -.1, .3], A 1: 1.105171, and .368390 a token; clipped 1.0004 and 0."""
    value, gradient = objective_of(
        Gspo(clip_low=0.5, clip_high=0.5, correction="none"), *one_turn([0.1, -0.1, 0.3])
    )
    assert value == pytest.approx(1.105171, rel=1e-5)
    assert gradient == pytest.approx([0.368390] * 3, rel=1e-5)
    value, gradient = objective_of(Gspo(correction="none"), *one_turn([0.1, -0.1, 0.3]))
    assert value == pytest.approx(1.0004, rel=1e-6)
    assert gradient == [0.0] * 3


def test_the_gradient_is_that_of_the_sequence_form():
    """sigma A of equation 7, a mean over turns, differentiated as it stands."""
    rule = Gspo(clip_low=0.9, clip_high=9.0, correction="none")
    turns = random_turns(6)
    for number, one in enumerate(turns):
        one.advantages = floats([(-1.0) ** number * (1 + number)] * len(one.tokens))
        one.weight = 1.0
    policy = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0])
    found = policy.gradient(pack(turns, budget=30), rule)
    logprobs = policy.logits.log_softmax(0)
    total = torch.tensor(0.0)
    for one in turns:
        d = logprobs[torch.from_numpy(one.tokens).long()] - torch.from_numpy(
            one.training.prox_logprobs
        )
        total = total - torch.exp(d.mean()) * float(one.advantages[0]) / len(turns)
    expected = torch.autograd.grad(total, policy.logits)[0]
    assert torch.allclose(found, expected, atol=1e-6)
    assert expected.abs().max() > 1e-2


def test_an_utterance_is_clipped_as_a_whole():
    """Its tokens' ratios are far from 1, their mean is not."""
    made, logprobs = one_turn([0.5, -0.5])
    value, gradient = objective_of(Gspo(correction="none"), made, logprobs)
    assert value == pytest.approx(1.0, abs=1e-6)
    assert gradient == pytest.approx([0.5, 0.5])
    assert math.exp(0.5) > 1 + Gspo().clip_high


def test_with_one_optimizer_step_it_is_grpo():
    """Then the anchor is the forward pass itself, and every ratio 1."""
    turns = random_turns(7)
    for one in turns:
        one.training.prox_logprobs = None
    policy = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0])
    found = policy.gradient(pack(turns, budget=1000), Gspo(minibatches=1))
    assert torch.allclose(found, policy.gradient(pack(turns, budget=1000), Grpo()), atol=1e-7)
    assert found.abs().max() > 1e-3


def test_defaults_are_the_papers():
    rule = Gspo()
    assert (rule.clip_low, rule.clip_high, rule.minibatches) == (3e-4, 4e-4, 4)
    assert (rule.agg, rule.needs_prox) == ("turn_mean", True)
    assert annotated(turn(), seed=0).training.prox_logprobs is not None
