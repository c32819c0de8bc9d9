"""What an algorithm needs and a config does not give: one line, before a weight is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.models import configured
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.toy import Letters, algorithm_cases, crew_config, write

HERE = Path(__file__).resolve()
TOY = HERE.parents[1] / "toy.py"


class Rigid(Letters):
    """Its worlds cannot be copied."""

    def open(self, task, *, seed):
        world = super().open(task, seed=seed)
        world.__class__ = type("RigidWorld", (type(world),), {"fork": assembly_world_fork()})
        return world


def assembly_world_fork():
    from rolecall.core.interfaces.environment import World

    return World.fork


REFERENCE = "compares with a reference and there is none; set policies.a.reference=initial"
CASES = {
    "no value head": ({"algorithm": "ppo"}, "critics.agent: ppo needs this critic"),
    "no team critic": ({"algorithm": "mappo"}, "set critics.team.base=MODEL"),
    "no mixer": ({"algorithm": "qmix"}, "critics.mixer: qmix needs this critic"),
    "a team critic without a model": (
        {"algorithm": "mappo", "critics": {"team": {}}},
        "critics.team.base is missing: a model reads the conversation; set critics.team.base=MODEL",
    ),
    "a value head with a model": (
        {"algorithm": "ppo", "critics": {"agent": {"base": "tiny:math"}}},
        "critics.agent.base has no effect",
    ),
    "a reader that VDN does not use": (
        {"algorithm": "vdn", "critics": {"mixer": {"base": "tiny:math"}}},
        "critics.mixer.base has no effect",
    ),
    "a critic nobody reads": (
        {"critics": {"team": {"base": "tiny:math"}}},
        "critics.team has no effect",
    ),
    "an unknown critic": ({"critics": {"boss": {}}}, "critics"),
    "no reference for DPO": ({"algorithm": "dpo"}, f"dpo {REFERENCE}"),
    "no reference for KL": (
        {"algorithm": {"name": "grpo", "kl": 0.1}},
        f"grpo {REFERENCE}, or algorithm.kl=0 to do without",
    ),
    "no reference by default": ({"algorithm": "reinforce_pp"}, f"reinforce_pp {REFERENCE}"),
    "group size 1": (
        {"algorithm": "rloo", "rollout": {"group_size": 1}},
        "rollout.group_size: rloo compares attempts at one task and needs at least 2 (it is 1)",
    ),
    "group size 1 without candidates": (
        {"algorithm": "dpo", "rollout": {"group_size": 1}},
        "rollout.group_size: dpo pairs answers to one prompt",
    ),
    "one candidate": (
        {"algorithm": "at_grpo"},
        "set workflow.candidates to 2 or more",
    ),
    "a workflow without candidates": (
        {"algorithm": "at_grpo", "workflow": "solver_verifier"},
        "",
    ),
    "candidates that train nobody": (
        {"workflow": {"candidates": 2}},
        "would train nobody; use at_grpo",
    ),
    "no candidates at all": ({"workflow": {"candidates": 0}}, "at least 1 (it is 0)"),
    "a world that cannot fork": (
        {
            "algorithm": "at_grpo",
            "workflow": {"candidates": 2},
            "environment": {"name": f"{HERE}:Rigid"},
        },
        "RigidWorld cannot fork; give it an async `fork` method",
    ),
    "a correction that counts the ratio twice": (
        {"algorithm": {"name": "grpo", "anchor": "sampler", "correction": "token_tis"}},
        "would count the ratio twice",
    ),
    "an option that the loss does not read": (
        {"algorithm": {"name": "dpo", "clip_low": 0.1}},
        "clip_low has no effect: Dpo's loss does not have it; remove it",
    ),
    "staleness without a copy": (
        {"trainer": {"max_staleness": 1}},
        "set engine.separate_weights=true",
    ),
    "staleness and determinism": (
        {
            "trainer": {"max_staleness": 1, "deterministic": True},
            "engine": {"separate_weights": True},
        },
        "trainer.deterministic",
    ),
    "values that are read while an update moves the model": (
        {
            "algorithm": {"name": "vdn_value", "distil": True},
            "critics": {"mixer": {}},
            "workflow": f"{TOY}:relay_of_three",
            "trainer": {"max_staleness": 1},
            "engine": {"separate_weights": True},
        },
        "trainer.max_staleness: vdn_value reads its agents' models in every call",
    ),
    "data for an algorithm of samples": (
        {"rollout": {"data": "rows.jsonl"}},
        "rollout.data: drmas needs turns that its own policies sampled",
    ),
    "a reference nobody reads": (
        {"policies": {"a": {"base": "x", "reference": "initial"}}},
        "policies.a.reference has no effect",
    ),
}


def refused(config: dict, folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        build(validate(load(write(folder / "c.yaml", config))))
    return str(error.value)


@pytest.mark.parametrize("name", list(CASES))
def test_an_unmet_need_is_one_clear_error(model_folder, tmp_path, monkeypatch, name):
    changes, said = CASES[name]
    monkeypatch.setattr(
        configured, "load_model", lambda *_, **__: pytest.fail("weights were loaded")
    )
    error = refused(crew_config(model_folder, **changes), tmp_path)
    assert said in error
    for line in error.split("\n"):
        assert line.startswith(f"{tmp_path / 'c.yaml'}:"), "the file is named"


def test_a_shared_policy_under_sequential_updates_is_refused(model_folder, tmp_path):
    settings = algorithm_cases(model_folder)["happo"]
    config = crew_config(model_folder, **settings)
    for agent in config["team"].values():
        agent["policy"] = "a"
    del config["policies"]["b"]
    error = refused(config, tmp_path)
    assert "all share policy 'a'; give each a policy of its own, or use mappo" in error


def test_two_losses_on_one_policy_are_refused_and_equal_ones_are_not(model_folder, tmp_path):
    def config(algorithm):
        made = crew_config(model_folder)
        made["team"]["second"]["algorithm"] = algorithm
        return made

    error = refused(config({"name": "drmas", "minibatches": 2}), tmp_path)
    assert "'first' and 'second' share policy 'a'" in error
    assert "team.second.algorithm.minibatches" in error
    assert "minibatches is 1 of 'first' and 2 of 'second'" in error
    assert "different losses" in refused(config("rloo"), tmp_path)
    run = build(
        validate(load(write(tmp_path / "c.yaml", config({"name": "grpo", "agg": "token"}))))
    )
    assert {part.agents for part in run.algorithm_groups} == {
        frozenset({"first", "last"}),
        frozenset({"second"}),
    }


def test_rows_without_pairs_are_refused_before_anything_runs(model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "chosen": "b"}\n')
    config = crew_config(model_folder, **algorithm_cases(model_folder)["dpo"])
    config["workflow"].pop("candidates")
    config["rollout"] = {"groups": 1, "data": str(rows)}
    error = refused(config, tmp_path)
    assert "rows.jsonl:1" in error
    assert "no agent" in error  # three agents are trained, and the row names none
    rows.write_text('{"prompt": "a", "chosen": "b", "agent": "last"}\n')
    assert "rows.jsonl:1: no pair: the row has no `rejected`" in refused(config, tmp_path)
    rows.write_text('{"prompt": "a", "chosen": "b", "rejected": "c", "agent": "last"}\n')
    config["rollout"]["groups"] = 2
    assert "a step of 2 preferences cannot be sampled from 1 rows" in refused(config, tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "key", "values"),
    [
        ({"name": "ppo"}, "value_coef", (0.1, 0.5)),
        ({"name": "ppo"}, "clip_value", (0.2, 0.4)),
        ({"name": "dpo"}, "beta", (0.1, 0.2)),
        ({"name": "dpo"}, "smoothing", (0.0, 0.1)),
    ],
)
def test_agents_on_one_policy_have_one_value_of_what_the_loss_reads(
    model_folder, tmp_path, algorithm, key, values
):
    config = crew_config(model_folder, **algorithm_cases(model_folder)[algorithm["name"]])
    config["team"]["second"]["algorithm"] = {**algorithm, key: values[1]}
    error = refused(config, tmp_path)
    assert f"team.second.algorithm.{key}: 'first' and 'second' share policy 'a'" in error
    assert f"{key} is {values[0]} of 'first' and {values[1]} of 'second'" in error


def test_agents_on_one_policy_may_differ_in_what_credit_alone_reads(model_folder, tmp_path):
    config = crew_config(model_folder, **algorithm_cases(model_folder)["ppo"])
    config["team"]["second"]["algorithm"] = {"name": "ppo", "lam": 0.5}
    assert len(build(validate(load(write(tmp_path / "c.yaml", config)))).algorithm_groups) == 2
