"""SPIN and iterative DPO: answers of a data set and the policy's own, and a moving reference."""

from __future__ import annotations

import asyncio
import json
import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.spin import Spin
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.learners.local import LocalLearner
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.setup.plan import validate
from rolecall.training.train_step import annotate
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import CPU, episode, language_model, solo_config, turn

STEPS, EVERY = 6, 2


def spinning(folder, tmp_path, *, adapter=None, **changes):
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n}?", "completion": "aa"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = {
        "base": str(folder), "optimizer": {"lr": 3e-3}, "reference": "initial",
        "reference_update_every": EVERY,
    }  # fmt: skip
    if adapter is not None:
        policy["adapter"] = adapter
    config = solo_config(
        folder, policies={"a": policy}, algorithm="spin", trainer={"steps": STEPS, "save_every": 1}
    )
    config["rollout"] = {"groups": 4, "data": str(file)}
    config["evaluation"] = {"tasks": 0}
    return config | changes


def losses_of(config, folder):
    display, losses = Display(), []
    display.step = lambda record: losses.append(record["agent/solver/loss"])
    asyncio.run(trainer_of(config, folder, display).train())
    return losses


@pytest.mark.parametrize("adapter", [None, {"rank": 4}])
def test_right_after_the_reference_is_refreshed_the_loss_is_ln_2(model_folder, tmp_path, adapter):
    losses = losses_of(spinning(model_folder, tmp_path, adapter=adapter), tmp_path / "run")
    for step, loss in enumerate(losses):
        fresh = loss == pytest.approx(math.log(2), abs=1e-6)
        assert fresh == (step % EVERY == 0), losses


def test_a_run_that_goes_on_has_the_reference_that_it_had(model_folder, tmp_path):
    whole = losses_of(spinning(model_folder, tmp_path), tmp_path / "whole")
    config = spinning(model_folder, tmp_path, trainer={"steps": 3, "save_every": 1})
    first = losses_of(config, tmp_path / "run")
    second = losses_of(spinning(model_folder, tmp_path), tmp_path / "run")
    assert [*first, *second] == whole


def test_the_policys_own_answers_are_sampled_anew_and_lose(model_folder, tmp_path):
    trainer = trainer_of(spinning(model_folder, tmp_path), tmp_path / "run", Display())

    async def collected(step):
        return (await trainer.collector.collect(step)).groups

    async def both():
        await trainer._resume()
        return await collected(1), await collected(1), await collected(2)

    one, again, other = asyncio.run(both())
    for (given, own), (_, same) in zip(one, again, strict=True):
        assert given.turns[0].text == "aa"
        assert own.turns[0].prompt.tolist() == given.turns[0].prompt.tolist()
        assert own.turns[0].tokens.tolist() == same.turns[0].tokens.tolist()
        assert (given.rewards, own.rewards) == ({"team": 1.0}, {"team": 0.0})
    said = [[group[1].turns[0].tokens.tolist() for group in groups] for groups in (one, other)]
    assert said[0] != said[1]


def test_an_own_answer_that_is_the_data_sets_makes_no_pair():
    def pairs(own):
        turns = [turn(episode="e0", tokens=[7, 8]), turn(episode="e1", tokens=own)]
        algorithm = Spin()
        algorithm.credit([episode(i, [t], {"team": 1.0 - i}) for i, t in enumerate(turns)])
        return [(a.id, b.id) for a, b in algorithm.pairs(turns)]

    assert pairs([7, 9]) == [("e0/solver0", "e1/solver0")]
    assert pairs([7, 8]) == []


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_refreshed_reference_stays_while_the_policy_moves(model_folder, tmp_path, with_adapter):
    if with_adapter:
        from rolecall.config.schema import Adapter

        base = load_model(str(model_folder), device=CPU, dtype=torch.float32)
        tokenizer = load_tokenizer(str(model_folder))
        model = with_adapters(base, tokenizer, {"p": Adapter(rank=4)}, seed=0)["p"]
        reference = "base"
    else:
        model = language_model(model_folder)
        reference = model.frozen_copy()
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, reference=reference)
    one = turn(tokens=[7, 8, 9])

    def noted():
        asyncio.run(annotate(learner, [one], {"ref_logprobs", "prox_logprobs"}, budget=100))
        return one.training.ref_logprobs.copy(), one.training.prox_logprobs.copy()

    def move():
        with torch.no_grad():
            for parameter in learner.parameters:
                parameter.add_(0.02 * torch.randn(parameter.shape))

    torch.manual_seed(0)
    begun, _ = noted()
    move()
    still, now = noted()
    assert np.array_equal(still, begun)
    assert not np.allclose(now, begun, atol=1e-3)
    asyncio.run(learner.refresh_reference())
    assert np.array_equal(*noted())
    move()
    kept, moved = noted()
    assert np.array_equal(kept, now)
    assert not np.allclose(moved, now, atol=1e-3)
    learner.save(tmp_path)
    asyncio.run(learner.refresh_reference())
    learner.load(tmp_path)
    assert np.array_equal(noted()[0], now)
    assert np.array_equal(noted()[1], moved)


def test_what_does_not_fit_is_one_line(model_folder, tmp_path):
    config = spinning(model_folder, tmp_path)
    config["rollout"] = {"groups": 4}
    with pytest.raises(ConfigError, match=r"rollout\.data: spin compares its own answers with dem"):
        validate(Config.model_validate(config))
    config = spinning(model_folder, tmp_path)
    config["policies"]["a"]["reference"] = str(model_folder)
    with pytest.raises(ConfigError, match="only the reference `initial` takes over weights"):
        validate(Config.model_validate(config))
