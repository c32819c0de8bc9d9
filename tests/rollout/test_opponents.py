"""Past weights of a policy: which are kept, who plays them when, and what is refused."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from rolecall.config.load import load
from rolecall.config.schema import OpponentPoolConfig
from rolecall.core.errors import ConfigError
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from tests.algorithms.test_every_algorithm import Display
from tests.toy import algorithm_cases, crew_config, relay_config, write

pytestmark = pytest.mark.slow


def handle(folder) -> LanguageModel:
    model = load_model(str(folder), device=torch.device("cpu"), dtype=torch.float32)
    return LanguageModel(model, load_tokenizer(str(folder)))


def move(model: LanguageModel) -> None:
    for tensor in model.weights().values():
        tensor.add_(1.0)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_first_weights_and_the_newest_are_kept(model_folder, tmp_path):
    model = handle(model_folder)
    pool = OpponentPool(model, OpponentPoolConfig(of="a", every=2, keep=3), seed=0)
    begun = {name: tensor.clone() for name, tensor in model.weights().items()}
    for step in range(1, 10):
        move(model)
        pool.after_step(step)
    assert [step for step, _ in pool.pool] == [0, 6, 8]
    assert pool.first == 0
    assert same(pool.weights_after(0), begun)
    assert not same(pool.pool[-1][1], model.weights()), "a copy, which no update reaches"
    assert {pool.kept_step(step) for step in range(64)} == {0, 6, 8}
    pool.save(tmp_path)
    again = OpponentPool(model, pool.config, seed=0)
    again.load(tmp_path)
    assert all(
        a[0] == b[0] and same(a[1], b[1]) for a, b in zip(pool.pool, again.pool, strict=True)
    )
    assert [again.kept_step(step) for step in range(64)] == [
        pool.kept_step(step) for step in range(64)
    ]


def test_each_step_is_played_against_the_weights_that_it_drew(model_folder, tmp_path, monkeypatch):
    case = algorithm_cases(model_folder)["earlier opponents"]
    config = relay_config(model_folder, **case, trainer={"steps": 6, "save_every": 9})
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    played = []
    collect = Trainer._rollout

    async def noting(trainer, step):
        rollout = await collect(trainer, step)
        played.append({name: t.clone() for name, t in run.publisher.models["b"].weights().items()})
        return rollout

    monkeypatch.setattr(Trainer, "_rollout", noting)
    display = Display()
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)
    begun = {name: tensor.clone() for name, tensor in run.publisher.models["b"].weights().items()}
    asyncio.run(Trainer(run, folder, display=display).train())
    drawn = [r["policy/b/of_step"] for r in folder.read_metrics() if r["kind"] == "step"]
    assert len(set(drawn)) > 1
    assert [same(weights, begun) for weights in played] == [step == 0 for step in drawn]
    assert same(run.publisher.models["b"].weights(), begun), (
        "the last evaluation is played like the first"
    )
    assert run.opponent_pools["b"].pool[-1][0] == 6


@pytest.mark.evidence  # starting ranks takes seconds
def test_weights_that_ranks_train_are_kept_and_played(model_folder, tmp_path):
    """They are kept of what is published to the engine of this process."""
    case = algorithm_cases(model_folder)["earlier opponents"]
    config = relay_config(
        model_folder, **case, evaluation={"tasks": 0}, trainer={"steps": 2, "save_every": 2},
        learner={"name": "replicated", "ranks": 1, "device": "cpu"},
    )  # fmt: skip
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)
    asyncio.run(Trainer(run, folder, display=Display()).train())
    folder.release()
    pool = run.opponent_pools["b"]
    assert [step for step, _ in pool.pool] == [0, 2]
    trained = load_file(tmp_path / "run/checkpoints/step-2/a/model.safetensors")
    assert same(pool.weights_after(2), trained)
    assert not same(pool.weights_after(0), trained)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policies": {"b": {"opponent_pool": {"of": "c"}}}}, "'c' is no policy that is trained"),
        ({"policies": {"b": {"opponent_pool": {"of": "b"}}}}, "'b' is no policy that is trained"),
        ({"team": {"last": {"policy": "b"}}}, "set team.last.trainable=false"),
        ({"policies": {"b": {"base": "tiny:math"}}}, "must be that of 'a'"),
        (
            {"policies": {"a": {"adapter": {"rank": 2}}}},
            "of an adapter are not kept",
        ),
        (
            {"trainer": {"max_staleness": 1}, "engine": {"separate_weights": True}},
            "set trainer.max_staleness=0",
        ),
        (
            {"learner": {"name": "replicated"}, "engine": {"name": "vllm"}},
            r"opponent_pool\.of: 'a' is trained on ranks and sampled by vLLM, .* learner\.name=",
        ),
        (
            {"learner": {"name": "fsdp"}, "engine": {"name": "sglang"}},
            r"opponent_pool\.of: 'a' is trained on ranks and sampled by SGLang, .* engine\.name=",
        ),
    ],
)
def test_a_past_that_cannot_be_played_is_refused(model_folder, tmp_path, changes, told):
    config = relay_config(model_folder, **algorithm_cases(model_folder)["earlier opponents"])
    for section, parts in changes.items():
        for name, value in parts.items():
            old = config.setdefault(section, {}).get(name)
            merged = {**old, **value} if isinstance(old, dict) and section != "team" else value
            config[section][name] = merged
    with pytest.raises(ConfigError, match=told):
        build(validate(load(write(tmp_path / "c.yaml", config))))


def crossed(folder, **changes) -> dict:
    return crew_config(folder, **{**algorithm_cases(folder)["agentrl"], **changes})


def test_earlier_weights_sample_their_share_of_an_agents_turns(model_folder, tmp_path):
    """With the log-probs of who sampled them; evaluations and other agents are played without."""
    config = crossed(
        model_folder, trainer={"steps": 4}, evaluation={"tasks": 4, "samples": 4},
        rollout={"groups": 8, "group_size": 8},
    )  # fmt: skip
    display = Display()
    folder = RunFolder(tmp_path / "run")
    loaded = load(write(tmp_path / "run.yaml", config))
    folder.start(loaded)
    trainer = Trainer(build(validate(loaded)), folder, display=display)
    asyncio.run(trainer.train())
    folder.release()
    rows = pq.read_table(folder.episode_file(4)).to_pylist()
    crossing = [json.loads(row["info"]).get("sampled_by", "") for row in rows]
    mine = [by for row, by in zip(rows, crossing, strict=True) if row["agent"] == "last"]
    assert 0.3 < np.mean([by == "earlier" for by in mine]) < 0.7, "64 turns, half of them"
    for row, by in zip(rows, crossing, strict=True):
        assert row["advantages"] is not None, "both kinds are trained"
        assert row["agent"] == "last" or not by
        assert {3} == set(row["versions"]) or (by and max(row["versions"]) < 3)
    played = pq.read_table(tmp_path / "run/evaluation-000004.parquet").to_pylist()
    assert not any(json.loads(row["info"]).get("sampled_by") for row in played)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cross_policy": {"policy": "nobody"}}, "'nobody' does not hold earlier weights of 'b'"),
        ({"cross_policy": {"policy": "a"}}, "'a' does not hold earlier weights of 'b'"),
        ({"cross_policy": {"policy": "earlier"}, "trainable": False}, "has no effect"),
        ({"cross_policy": {"policy": "earlier", "share": 1.0}}, "less than 1"),
    ],
)
def test_a_cross_policy_that_cannot_be_is_one_line(model_folder, tmp_path, changes, told):
    config = crossed(model_folder)
    config["team"]["last"] |= changes
    with pytest.raises(ConfigError, match="cross_policy") as error:
        validate(load(write(tmp_path / "run.yaml", config)))
    assert told in str(error.value)
