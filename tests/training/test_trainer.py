"""Whole runs of the trainer on small real models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rolecall.config.load import load
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import NothingTrainsError, Trainer
from tests.toy import relay_config, solo_config, write

pytestmark = pytest.mark.slow


class Silent:
    def step(self, record):
        return None

    def evaluation(self, record):
        return None


def train(config: dict, folder: Path) -> Trainer:
    loaded = load(write(folder.with_suffix(".yaml"), config))
    run_folder = RunFolder(folder)
    run_folder.start(loaded)
    trainer = Trainer(build(validate(loaded)), run_folder, display=Silent())
    asyncio.run(trainer.train())
    return trainer


def weights(trainer: Trainer, policy: str) -> torch.Tensor:
    parameters = [p for _, p in trainer.run.publisher.models[policy].named_parameters()]
    return torch.cat([p.detach().flatten() for p in parameters]).clone()


def turns(folder: Path) -> list[tuple]:
    files = sorted((folder / "episodes").glob("*.parquet"))
    return [
        (r["turn"], r["token_ids"], r["logprobs"], r["advantage"])
        for file in files
        for r in pq.read_table(file).to_pylist()
    ]


def test_same_seed_same_run(model_folder, tmp_path):
    """Contract 5: bit for bit, also with random delays in worlds and tools."""
    calm = train(relay_config(model_folder), tmp_path / "calm")
    delays = {"max_delay_s": 0.01}
    config = relay_config(model_folder, environment=delays)
    shaken = train(config, tmp_path / "shaken")
    assert turns(tmp_path / "calm") == turns(tmp_path / "shaken")
    for policy in ("a", "b"):
        assert torch.equal(weights(calm, policy), weights(shaken, policy))
    config["trainer"]["seed"] = 1
    other = train(config, tmp_path / "other")
    assert not torch.equal(weights(calm, "a"), weights(other, "a"))


def test_frozen_policy_never_moves(model_folder, tmp_path):
    """Contract 6: same parameters before and after, in no batch, though others read its words."""
    config = relay_config(model_folder)
    config["team"]["last"]["trainable"] = False
    del config["policies"]["b"]["optimizer"]
    fresh = build(validate(load(write(tmp_path / "c.yaml", config))))
    before = {n: p.clone() for n, p in fresh.publisher.models["b"].model.state_dict().items()}
    trainer = train(config, tmp_path / "run")
    after = trainer.run.publisher.models["b"].model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    moved = fresh.publisher.models["a"].model.state_dict()
    current = trainer.run.publisher.models["a"].model.state_dict()
    assert any(not torch.equal(moved[name], current[name]) for name in moved)
    rows = pq.read_table(tmp_path / "run" / "episodes").to_pylist()
    frozen = [r for r in rows if r["agent"] == "last"]
    assert frozen
    assert all(r["advantage"] is None and not r["trained"] for r in frozen)


def test_two_adapters_on_one_base_train_apart(model_folder, tmp_path):
    config = relay_config(model_folder, trainer={"steps": 2})
    for policy in ("a", "b"):
        config["policies"][policy]["adapter"] = {"rank": 4, "alpha": 8}
        config["policies"][policy]["optimizer"] = {"lr": 0.01}
    trainer = train(config, tmp_path / "run")
    a, b = trainer.run.publisher.models["a"], trainer.run.publisher.models["b"]
    assert a.model is b.model
    base = torch.cat(
        [p.detach().flatten() for n, p in a.model.named_parameters() if "lora" not in n]
    )
    fresh = build(validate(load(tmp_path / "run.yaml")))
    untouched = torch.cat(
        [
            p.detach().flatten()
            for n, p in fresh.publisher.models["a"].model.named_parameters()
            if "lora" not in n
        ]
    )
    assert torch.equal(base, untouched)
    assert not torch.equal(weights(trainer, "a"), weights(trainer, "b"))
    for policy in ("a", "b"):
        start = torch.cat(
            [p.flatten() for _, p in fresh.publisher.models[policy].named_parameters()]
        )
        assert not torch.equal(weights(trainer, policy), start)
    saved = tmp_path / "run" / "checkpoints" / "step-2" / "a"
    assert (saved / "adapter_model.safetensors").is_file()


def test_exported_policies_load_with_transformers(model_folder, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = train(solo_config(model_folder, trainer={"steps": 1}), tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "step-1" / "a"
    model = AutoModelForCausalLM.from_pretrained(saved)
    assert AutoTokenizer.from_pretrained(saved).chat_template
    ours = trainer.run.publisher.models["a"].model.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in model.state_dict().items())


def test_a_random_model_learns_what_is_rewarded(model_folder, tmp_path):
    config = solo_config(
        model_folder,
        environment={"kinds": 1},
        rollout={"groups": 6, "group_size": 8},
        trainer={"steps": 8, "save_every": 100},
        policies={"a": {"base": str(model_folder), "optimizer": {"lr": 0.02}}},
        evaluation={"tasks": 9, "samples": 8, "k": 8},
    )
    train(config, tmp_path / "run")
    records = RunFolder(tmp_path / "run").read_metrics()
    before, after = [r["avg@8"] for r in records if r["kind"] == "evaluation"]
    assert after > before + 0.05


def test_each_agent_has_its_metrics_although_two_share_a_policy(model_folder, tmp_path):
    train(relay_config(model_folder, trainer={"steps": 1}), tmp_path / "run")
    [record] = [r for r in RunFolder(tmp_path / "run").read_metrics() if r["kind"] == "step"]
    for name in ("left", "right", "last"):
        for metric in ("reward", "grad_norm", "entropy", "turns", "tokens", "truncated", "invalid"):
            assert np.isfinite(record[f"agent/{name}/{metric}"])
        assert record[f"agent/{name}/mismatch_max"] <= 1e-4
    assert record["agent/last/grad_norm"] == record["policy/b/grad_norm"]
    assert record["agent/left/grad_norm"] != record["agent/right/grad_norm"]


def test_a_run_in_which_nothing_trains_stops_and_says_why(model_folder, tmp_path):
    config = solo_config(model_folder, environment={"fail_share": 1.0}, evaluation={"tasks": 0})
    with pytest.raises(NothingTrainsError, match="the world went away"):
        train(config, tmp_path / "run")
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step-3\n"
    rows = pq.read_table(tmp_path / "run/episodes").to_pylist()
    assert len(rows) == 3 * 12
    assert all("the world went away" in row["error"] for row in rows)


def test_evaluations_come_at_intervals_and_the_best_checkpoint_is_marked(model_folder, tmp_path):
    config = solo_config(model_folder, trainer={"steps": 3, "save_every": 100})
    config["evaluation"] |= {"every": 1}
    train(config, tmp_path / "run")
    records = RunFolder(tmp_path / "run").read_metrics()
    scores = {r["step"]: r["avg@2"] for r in records if r["kind"] == "evaluation"}
    assert [r["when"] for r in records if r["kind"] == "evaluation"] == [
        "before", "during", "during", "after",
    ]  # fmt: skip
    saved = {step: score for step, score in scores.items() if step}
    pointer = tmp_path / "run/checkpoints/best"
    if max(saved.values()) > scores[0]:
        best = max(saved, key=lambda step: saved[step])
        assert pointer.read_text() == f"step-{best}\n"
    else:
        assert not pointer.exists()


def test_one_role_may_be_played_twice_and_agents_may_share_or_be_frozen(tmp_path):
    """All from YAML, on the embedded model."""
    sampling = {"max_tokens": 40}
    config = {
        "team": {
            "solver": {"policy": "both", "sampling": sampling, "invalid_penalty": 0.1},
            "strict": {
                "policy": "both",
                "role": "verifier",
                "sampling": sampling,
                "invalid_penalty": 0.1,
            },
            "kind": {"policy": "ice", "role": "verifier", "trainable": False},
        },
        "policies": {
            "both": {"base": "tiny:math", "adapter": {"rank": 4}},
            "ice": {"base": "tiny:math"},
        },
        "workflow": {"name": "solver_verifier", "on_unparsable": "retry"},
        "environment": {"name": "math", "level": 1, "kinds": ["expression"]},
        "algorithm": "drmas",
        "rollout": {"groups": 4, "group_size": 8},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 0},
    }
    train(config, tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "episodes").to_pylist()
    assert {row["agent"] for row in rows} == {"solver", "strict", "kind"}
    [record] = RunFolder(tmp_path / "run").read_metrics()
    assert record["agent/strict/grad_norm"] > 0
    assert record["agent/solver/grad_norm"] > 0
    assert "agent/kind/grad_norm" not in record
    read = [r for r in rows if r["agent"] == "strict" and r["valid"]]
    assert read
    assert all("<verify>" in row["text"] for row in read)


@pytest.mark.parametrize(
    ("staleness", "expected"), [pytest.param(0, 2, marks=pytest.mark.evidence), (1, 1)]
)
def test_steps_that_overlap_share_the_cores(
    model_folder, tmp_path, monkeypatch, staleness, expected
):
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(Silent, "step", lambda self, record: seen.append(torch.get_num_threads()))
    changes = {"trainer": {"max_staleness": staleness}, "engine": {"separate_weights": True}}
    changes |= {"rollout": {"groups": 1, "group_size": 2}, "evaluation": {"tasks": 0}}
    torch.set_num_threads(2)
    try:
        train(relay_config(model_folder, **changes), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [expected] * 3
