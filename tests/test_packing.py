"""Packed rows train exactly as single turns do, and only sampled ids carry loss."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.learners.local import LocalLearner
from rolecall.learners.optim import Optimizer
from rolecall.packing import join, one_turn, pack
from tests.toy import language_model, turn


def turns_of(number: int, *, agents=("solver",), seed: int = 0, zeros: int = 0):
    draw = random.Random(seed)
    made = []
    for i in range(number):
        prompt = [draw.randrange(260) for _ in range(draw.randint(1, 30))]
        tokens = [draw.randrange(260) for _ in range(draw.randint(1, 20))]
        advantage = 0.0 if i < zeros else draw.uniform(-2, 2)
        t = turn(
            draw.choice(agents), episode=f"e{i}", prompt=prompt, tokens=tokens, advantage=advantage
        )
        t.temperature = draw.choice([0.7, 1.0])
        made.append(t)
    return made


def gradient(folder, batches, algorithm):
    """Loss and gradient of one step, as the learner forms them before it clips."""
    learner = LocalLearner(language_model(folder), Optimizer(lr=1e-3), total_updates=1)
    losses = []
    for batch in batches:
        loss = algorithm.loss(batch, learner.forward(batch))
        loss.total.backward()
        losses.append(loss)
    count = sum(loss.count for loss in losses)
    total = sum(float(loss.total.detach()) for loss in losses) / count
    flat = torch.cat([p.grad.flatten() for p in learner.parameters]) / count
    return total, flat


@pytest.mark.parametrize("algorithm", [DrMas(), Grpo(), DrMas(agg="turn_sum", turn_length=20)])
def test_packed_equals_one_by_one(any_model_folder, algorithm):
    """Contract 2: same loss and gradient, for each family."""
    turns = turns_of(9)
    packed = gradient(any_model_folder, [join(turns)], algorithm)
    single = gradient(any_model_folder, [join([t]) for t in turns], algorithm)
    assert packed[0] == pytest.approx(single[0], abs=1e-6)
    assert torch.allclose(packed[1], single[1], atol=1e-6)
    assert packed[1].abs().max() > 1e-3


def test_packed_log_probs_equal_those_of_single_turns(any_model_folder):
    turns = turns_of(7)
    learner = LocalLearner(language_model(any_model_folder), Optimizer(lr=1.0), total_updates=1)
    with torch.no_grad():
        batch = join(turns)
        packed = learner.forward(batch).logprobs.numpy()
        for number, one in enumerate(turns):
            alone = join([one])
            single = learner.forward(alone).logprobs.numpy()
            assert np.allclose(packed[batch.turn == number], single, atol=1e-5)


def test_attention_across_turns_would_be_noticed(model_folder):
    """The mutation that makes the test above worth having: one row instead of two."""
    turns = turns_of(2)
    learner = LocalLearner(language_model(model_folder), Optimizer(lr=1.0), total_updates=1)
    batch = join(turns)
    with torch.no_grad():
        right = learner.forward(batch).logprobs.numpy()
        batch.parent[batch.parent == -1] = np.array([-1, int(np.argmax(batch.turn)) - 1])
        wrong = learner.forward(batch).logprobs.numpy()
    second = (batch.turn == 1) & (batch.mask > 0)
    assert np.abs(right - wrong)[second].max() > 1e-2


@pytest.mark.parametrize("budget", [1, 60, 100, 10_000])
def test_micro_batches_equal_whole(model_folder, budget):
    """Contract 2, with two agents and turns without advantage."""
    turns = turns_of(12, agents=("solver", "verifier"), zeros=4)
    whole = gradient(model_folder, [join(turns)], DrMas())
    parts = pack(turns, budget=budget, skip_zero=True)
    found = gradient(model_folder, parts, DrMas())
    assert found[0] == pytest.approx(whole[0], abs=1e-6)
    assert torch.allclose(found[1], whole[1], atol=1e-6)
    assert sum(b.num_tokens for b in parts) == sum(len(t.tokens) for t in turns)
    assert sum(b.num_turns for b in parts) == 12
    assert all(len(b.tokens) <= budget or len(b.turn_ids) == 1 for b in parts)


def test_skipped_turns_of_no_advantage_still_count_in_every_normaliser(model_folder):
    turns = turns_of(6, zeros=3)
    for algorithm in (DrMas(), Grpo()):
        kept = gradient(model_folder, pack(turns, budget=500, skip_zero=False), algorithm)
        skipped = gradient(model_folder, pack(turns, budget=500, skip_zero=True), algorithm)
        assert torch.allclose(kept[1], skipped[1], atol=1e-7)
    assert pack(turns[:3], budget=500, skip_zero=True) == []


def test_only_sampled_tokens_carry_loss(model_folder):
    """Contract 6: per agent the mask has as many ones as it sampled ids; the rest is inert."""
    turns = turns_of(10, agents=("solver", "verifier"))
    for batch in pack(turns, budget=120, skip_zero=False):
        mine = [t for t in turns if t.id in batch.turn_ids]
        assert batch.mask.sum() == sum(len(t.tokens) for t in mine)
        assert {t.agent for t in mine} == {batch.agent}
    batch = join(turns)
    for number, t in enumerate(turns):
        ids = batch.tokens[batch.turn == number]
        mask = batch.mask[batch.turn == number]
        assert ids.tolist() == [*t.prompt.tolist(), *t.tokens.tolist()]
        assert mask.tolist() == [0.0] * len(t.prompt) + [1.0] * len(t.tokens)
    before = gradient(model_folder, [batch], DrMas())[1]
    for column in (batch.advantages, batch.old_logprobs):
        column[batch.mask == 0] = 1e6
    after = gradient(model_folder, [batch], DrMas())[1]
    assert torch.equal(before, after)


def test_the_worked_example_of_the_batch():
    batch = join([turn(prompt=[7, 8], tokens=[9, 2]), turn(prompt=[1], tokens=[3], episode="e1")])
    assert batch.tokens.tolist() == [7, 8, 9, 2, 1, 3]
    assert batch.mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.parent.tolist() == [-1, 0, 1, 2, -1, 4]
    second = one_turn(batch, 1)
    assert (second.tokens.tolist(), second.parent.tolist()) == ([1, 3], [-1, 0])
