"""Utilities of single agents and their mix, on a team whose second agent does not matter."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Episode
from rolecall.critics.utilities import UtilityCritic
from tests.toy import episode, language_model, turn


def pair(attempt: int, first: int, second: int) -> Episode:
    """Both speak one id at once; the team earns what the first one said."""
    name = f"x:{attempt}"
    turns = [
        turn("left", episode=name, path=(0,), tokens=[10 + first], prompt=(5, 6)),
        turn("right", episode=name, path=(1,), tokens=[10 + second], prompt=(5, 6, 7)),
    ]
    return episode(attempt, turns, {"team": float(first)})


def critic_of(folder, mixer: str) -> UtilityCritic:
    model = language_model(folder)
    return UtilityCritic(
        {"p": model}, Optimizer(lr=3e-3), agents=["left", "right"], mixer=mixer,
        reader=model if mixer == "qmix" else None, budget=1000, total_updates=10_000,
    )  # fmt: skip


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_credit_goes_to_the_agent_that_earned_it(model_folder, mixer):
    critic = critic_of(model_folder, mixer)
    said = [pair(2 * a + b, a, b) for a in (0, 1) for b in (0, 1)]
    asyncio.run(critic.annotate(said))
    before = [turn.training.utility.gain for e in said for turn in e.turns]
    if mixer == "vdn":
        assert before == [0.0] * 8, "an untrained critic gives nobody credit"
    for _ in range(15):
        asyncio.run(critic.annotate(said))
        critic.fit(said, [[e.rewards["team"]] for e in said], epochs=40)
    asyncio.run(critic.annotate(said))
    gains = np.array([[turn.training.utility.gain for turn in e.turns] for e in said])
    assert gains[:2, 0] == pytest.approx([-0.5, -0.5], abs=0.1)
    assert gains[2:, 0] == pytest.approx([0.5, 0.5], abs=0.1)
    assert np.abs(gains[:, 1]).max() < 0.1, "the second agent does not matter"
    mixed = [e.turns[0].training.utility.mixed_q for e in said]
    assert mixed == pytest.approx([0, 0, 1, 1], abs=0.1)
    for e in said:
        for each in e.turns:
            assert each.training.utility.mixed_q == e.turns[0].training.utility.mixed_q


def test_policies_are_read_and_never_moved(model_folder):
    critic = critic_of(model_folder, "qmix")
    model = critic.models["p"].model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    said = [pair(0, 1, 0), pair(1, 0, 1)]
    asyncio.run(critic.annotate(said))
    critic.fit(said, [[1.0], [0.0]], epochs=5)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_saved_mixer_goes_on_bit_for_bit(model_folder, tmp_path):
    said = [pair(0, 1, 0), pair(1, 0, 1)]
    one, other = critic_of(model_folder, "qmix"), critic_of(model_folder, "qmix")
    asyncio.run(one.annotate(said))
    one.fit(said, [[1.0], [0.0]], epochs=3)
    one.save(tmp_path)
    other.load(tmp_path)
    for critic in (one, other):
        asyncio.run(critic.annotate(said))
        critic.fit(said, [[1.0], [0.0]], epochs=3)
    for a, b in zip(one.stepper.parameters, other.stepper.parameters, strict=True):
        assert torch.equal(a, b)
