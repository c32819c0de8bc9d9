"""A critic with a model of its own values each token of a turn."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
import torch

from rolecall.algorithms.losses import value_loss
from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.ppo_critic import PpoCritic
from rolecall.config.optimizer import Optimizer
from rolecall.critics.tokens import TokenCritic
from rolecall.models.attention.layouts import Rows
from tests.algorithms.small import singles
from tests.toy import CPU, command, episode, language_model, relay_config, turn, write

LOSS = partial(value_loss, clip=0.2)


def critic(folder, **options) -> TokenCritic:
    torch.manual_seed(0)
    made = TokenCritic(
        language_model(folder), Optimizer(lr=3e-3), total_updates=50, **{"budget": 64, **options}
    )
    torch.nn.init.normal_(made.head.weight, std=0.1)
    return made


def team():
    """Two attempts whose first token says what they earn."""
    return [
        episode(n, [turn(episode=f"x{n}", tokens=[70 + n, 65, 66])], {"team": float(n)})
        for n in (0, 1)
    ]


def test_values_are_read_where_each_token_is_predicted(model_folder):
    made, [one, _] = critic(model_folder), team()
    asyncio.run(made.annotate([one]))
    ids = np.concatenate(one.turns[0].ids)
    layout = Rows([len(ids)], device=CPU)
    with torch.no_grad():
        _, hidden = made.model.forward(
            torch.from_numpy(ids).long(), layout.position, layout=layout, hidden=True,
            keep=torch.arange(len(ids)),
        )  # fmt: skip
        every = made.head(hidden)[:, 0].numpy()
    prompt = len(one.turns[0].ids[0])
    assert one.turns[0].training.values == pytest.approx(every[prompt - 1 : -1], abs=1e-5)


def test_values_do_not_depend_on_how_turns_share_a_pass(model_folder):
    wide, narrow = team(), team()
    asyncio.run(critic(model_folder).annotate(wide))
    asyncio.run(critic(model_folder, budget=1).annotate(narrow))
    for one, other in zip(wide, narrow, strict=True):
        close = pytest.approx(other.turns[0].training.values, abs=1e-5)
        assert one.turns[0].training.values == close


def test_the_critic_learns_what_turns_earn(model_folder):
    made, episodes, algorithm = critic(model_folder), team(), PpoCritic(lam=1.0)
    losses = []
    for _ in range(12):
        asyncio.run(made.annotate(episodes))
        algorithm.credit(episodes)
        losses.append(algorithm.fit(episodes, made)["loss"])
    asyncio.run(made.annotate(episodes))
    zero, one = (e.turns[0].training.values for e in episodes)
    assert losses[-1] < 0.3 * losses[0]
    assert one[1:].mean() - zero[1:].mean() > 0.5  # once the first token is known


def test_a_saved_critic_goes_on_with_the_same_bits(model_folder, tmp_path):
    made, episodes = critic(model_folder), team()
    asyncio.run(made.annotate(episodes))
    PpoCritic().credit(episodes)
    made.fit(episodes, LOSS, epochs=1)
    made.save(tmp_path)
    again = critic(model_folder)
    again.load(tmp_path)
    for one in (made, again):
        one.fit(episodes, LOSS, epochs=1)
    first, second = (dict(one.model.named_parameters()) for one in (made, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_credit_is_that_of_ppo_with_the_same_values():
    pairs = [singles([1, 0, 0.5]), singles([1, 0, 0.5])]
    for episodes, algorithm in zip(pairs, (Ppo(), PpoCritic()), strict=True):
        for number, each in enumerate(episodes):
            each.turns[0].training.values = np.array([0.1 * number, 0.3], dtype=np.float32)
        algorithm.credit(episodes)
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_array_equal(one.turns[0].advantages, other.turns[0].advantages)
        np.testing.assert_array_equal(one.turns[0].returns, other.turns[0].returns)


def test_a_critic_without_a_base_or_with_other_tokens_is_refused(model_folder, tmp_path, capsys):
    config = relay_config(model_folder, algorithm="ppo_critic", evaluation={"tasks": 0})
    run = ["--output", tmp_path / "run"]
    assert command("train", write(tmp_path / "a.yaml", config), *run) == 2
    assert "critics.token: ppo_critic needs this critic; set critics.token.base=MODEL" in (
        capsys.readouterr().err
    )
    config["critics"] = {"token": {"base": "tiny:search"}}
    assert command("train", write(tmp_path / "b.yaml", config), *run) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "critics.token.base: it has another vocabulary than policies.a.base" in line
