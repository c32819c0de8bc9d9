"""Losses of likelihoods have one temperature, whether an agent or a file said the words."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import transformers

from rolecall.config.load import load
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.collector import Collector
from tests.algorithms.small import NAMES, algorithm
from tests.algorithms.test_every_algorithm import case
from tests.toy import write


def collected(config: dict, tmp_path):
    """A run whose agents sample at temperature .5, and its first episodes with credit."""
    for agent in config["team"].values():
        agent["sampling"] = {"max_tokens": 8, "temperature": 0.5}
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        rollout = await Collector(run, folder).collect(1)
        await train_step.credit(run, rollout.episodes)
        return rollout.episodes

    return run, asyncio.run(main())


def likelihood(folder, one) -> np.ndarray:
    """Log-probs of a turn's tokens by transformers at temperature 1."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt, tokens = one.ids
    row = torch.from_numpy(np.concatenate([prompt, tokens])).long()[None]
    with torch.no_grad():
        logprobs = model(row).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(-1, row[0, len(prompt) :, None])[:, 0].numpy()


def losses(run, policy: str, episodes) -> list:
    rule = run.get_step_algorithm(policy)
    turns = train_step.trained_turns(episodes, policy, rule)
    [batches] = train_step.optimizer_steps(run, policy, turns, rule, seed=0, by_agent=False)
    with torch.no_grad():
        return [rule.loss(batch, run.learners[policy].forward(batch)) for batch in batches]


def test_imitated_turns_have_the_loss_that_rows_of_a_file_have(model_folder, tmp_path):
    config = case(model_folder, "sft")
    config["algorithm"] = {"name": "sft", "threshold": -1.0}
    run, episodes = collected(config, tmp_path)
    for policy in ("a", "b"):
        said = [t for e in episodes for t in e.turns if t.policy == policy]
        assert all(t.temperature == 0.5 for t in said), "as they were sampled"
        whole = np.concatenate([likelihood(model_folder, t) for t in said])
        found = losses(run, policy, episodes)
        total, count = (sum(float(getattr(one, name)) for one in found) for name in
                        ("total", "count"))  # fmt: skip
        assert count == len(whole)
        assert total / count == pytest.approx(-whole.mean(), rel=1e-4)


def test_preferences_compare_likelihoods_at_temperature_1(model_folder, tmp_path):
    run, episodes = collected(case(model_folder, "dpo"), tmp_path)
    said = [t for e in episodes for t in e.turns if t.training.ref_logprobs is not None]
    assert said
    for one in said[:6]:
        assert one.temperature == 0.5
        assert one.training.ref_logprobs == pytest.approx(likelihood(model_folder, one), abs=1e-4)
    # The policy is its own reference before the first update, so every margin is 0.
    for policy in ("a", "b"):
        for found in losses(run, policy, episodes):
            assert float(found.total) / found.count == pytest.approx(np.log(2), abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_without_a_ratio_to_the_sampler_reads_likelihoods(name):
    """And no other: whoever reads the anchor has the sampler's temperature."""
    rule = algorithm(name)
    assert rule.reads_likelihoods == ("anchor" not in type(rule).model_fields)
