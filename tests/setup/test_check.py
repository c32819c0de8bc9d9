"""`rolecall check` says what a run would do, and its sizes are those of the models."""

from __future__ import annotations

import json

import pytest

from rolecall.config.load import load
from rolecall.memory.estimate import estimate_memory
from rolecall.models.sizes import get_size
from rolecall.runs import check as checking
from rolecall.setup import build as building
from rolecall.setup.plan import load_plan, validate
from tests.cli.test_cli import command
from tests.toy import algorithm_cases, relay_config, write


@pytest.fixture
def no_weights(monkeypatch):
    from rolecall.models import loading

    name = "from_pretrained"
    model = loading.AutoModelForCausalLM
    monkeypatch.setattr(model, name, lambda *_, **__: pytest.fail("weights were loaded"))


def test_a_recipe_is_described_with_effective_values(no_weights, capsys):
    assert command("check", "math", "trainer.steps=3", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["workflow"]["roles"] == ["solver", "verifier"]
    assert found["agents"]["solver"]["lr"] == 1e-4
    assert found["agents"]["verifier"]["algorithm"] == "drmas"
    assert found["step"]["episodes"] == 24 * 8
    assert found["step"]["steps"] == 3
    assert found["step"]["available_tasks"]["train"] == "without end"
    assert "24 tasks x 8 attempts = 192 episodes" in " ".join(printed.err.split())


def test_what_is_missing_is_told_after_the_rest(no_weights, capsys, tmp_path):
    nowhere = tmp_path / "rows.jsonl"
    assert command("check", "math", f"environment.train={nowhere}") == 2
    printed = capsys.readouterr()
    assert "train unknown" in " ".join(printed.out.split())
    assert "math.yaml:19: environment: " in printed.err
    assert "rows.jsonl" in printed.err


@pytest.mark.parametrize("case", ["grpo", "adapters", "grpo with kl", "mappo", "earlier opponents"])
def test_sizes_are_those_of_the_models_that_are_then_made(case, model_folder, tmp_path):
    config = relay_config(model_folder, **algorithm_cases(model_folder)[case])
    config["engine"] = {"cache_gb": 0.01}
    plan = load_plan(write(tmp_path / "team.yaml", config))
    needs = estimate_memory(plan.config, activations="none")
    told = {(need.owner, need.part): need for need in needs}
    run = building.build(plan)
    for name, learner in run.learners.items():
        trained = sum(parameter.numel() for _, parameter in learner.model.named_parameters())
        kind = "adapter" if case == "adapters" else "policy"
        mine = [told[f"{kind} {name}", part] for part in ("weights", "moments", "gradients")]
        assert [need.parameters for need in mine] == [trained] * 3
        assert sum(need.num_bytes for need in mine) == 16 * trained
    owners = {owner for owner, _ in told}
    assert ("critic team" in owners) == (case == "mappo")
    assert any(owner.startswith("reference") for owner in owners) == (case == "grpo with kl")


def test_a_token_of_the_cache_takes_what_the_allocator_says(model_folder, tmp_path):
    size = get_size(str(model_folder))
    config = relay_config(model_folder) | {"engine": {"cache_gb": 0.1}}  # less than rows can fill
    run = building.build(validate(load(write(tmp_path / "team.yaml", config))))
    cache = run.engine._schedulers["a"].allocator
    per_page = size.cache_per_token * 4 * 16
    assert cache.num_pages == int(run.config.engine.cache_gb * 1e9) // per_page


def test_a_base_that_is_not_here_is_unknown_and_nothing_is_fetched(tmp_path):
    found = checking.describe_plan(load_plan_of("tiny:math", "nobody/nothing", tmp_path), None)
    parts = {(need["owner"], need["part"]): need["parameters"] for need in found["memory"]}
    assert parts["policy verifier", "weights"] is None
    assert parts["policy solver", "weights"] == get_size("tiny:math").parameters


def load_plan_of(solver: str, verifier: str, folder):
    from rolecall.config.load import find

    return load_plan(
        find("math"), [f"policies.solver.base={solver}", f"policies.verifier.base={verifier}"]
    )
