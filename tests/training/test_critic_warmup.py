"""In the first steps only critics may learn, while the policies stay."""

from __future__ import annotations

import json

import pytest

from tests.algorithms.test_every_algorithm import case, train
from tests.cli.test_cli import rolecall
from tests.toy import write


@pytest.mark.parametrize("name", ["ppo_critic", "mappo"])
def test_critics_learn_alone_before_policies_do(model_folder, tmp_path, name):
    config = case(model_folder, name)
    config["trainer"] |= {"steps": 4, "critic_warmup": 3, "idle_steps": 2}
    train(config, tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    steps = [record for record in lines if record["kind"] == "step"]
    updated = [any(key.startswith("policy/") and "grad_norm" in key for key in s) for s in steps]
    assert updated == [False, False, False, True]
    assert all(any(key.startswith("critic/") for key in step) for step in steps)


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("grpo", 1, "grpo of first has no critic, which cannot learn alone"),
        ("ppo", 1, "ppo of first has a head on the policy's own model, which cannot learn alone"),
        ("ppo_critic", 9, "9 steps leave none of the 2 in which policies learn"),
    ],
)
def test_a_warmup_without_an_effect_is_refused(
    model_folder, tmp_path, capsys, name, steps, message
):
    config = case(model_folder, name)
    config["trainer"] |= {"steps": 2, "critic_warmup": steps}
    status, _, error = rolecall("check", write(tmp_path / "a.yaml", config), capsys=capsys)
    assert status == 2
    assert f"trainer.critic_warmup: {message}" in error
