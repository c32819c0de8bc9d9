"""Recipes for real models, as they stand, on tiny random models and local data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from rolecall.config.load import find, read_files, recipe_names
from tests import toy
from tests.sandbox.places import working_sandbox
from tests.toy import command

MATH = ["gsm8k_train_1000.jsonl", "math_500.json"]
FILE = Path(__file__).resolve().parents[1] / "benchmarks/prove_learning.py"
REAL = [
    "mathchat_coach", "drmas_math", "grpo_math", "drmas_search", "grpo_search",
    "data_science_coach", "debate_judge", "coder_tester",
]  # fmt: skip
VARIANTS = ["drmas_math_24gb", "drmas_math_80gb", "drmas_math_8x80gb"]  # of real recipes, for other hardware
SANDBOX = {"mathchat_coach", "data_science_coach", "coder_tester"}


spec = importlib.util.spec_from_file_location("prove_learning", FILE)
assert spec is not None
assert spec.loader is not None
prove_learning = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prove_learning)
TWINS = prove_learning.TWINS


def made_small(name: str, folder, data) -> dict:
    """The recipe with other models, other data, short turns and no servers."""
    recipe = OmegaConf.to_container(read_files(find(name), {}))
    for policy in recipe["policies"].values():
        policy["base"] = str(folder)
    for agent in recipe["team"].values():
        agent["sampling"]["max_tokens"] = 6
    where = recipe["environment"]
    if where["name"] == "math":
        where["train"], where["test"] = (f"{data}/{file}" for file in MATH)
    else:  # generated
        for key in ("url", "train", "test", "root"):
            where.pop(key, None)
    if "coach" in recipe.get("rewards", {}):
        kept = {"w_process", "w_outcome"}
        coach = recipe["rewards"]["coach"]
        changed = {key: value for key, value in coach.items() if key in kept}
        recipe["rewards"]["coach"] = changed | {"provider": "local", "on_error": "outcome_only"}
    if name == "debate_judge":  # a debate without a winner is an error: random words name none
        twin = yaml.safe_load(find("debate").read_text())
        for agent, known in twin["team"].items():
            recipe["team"][agent] |= {"system": known["system"], "sampling": known["sampling"]}
        for policy in recipe["policies"].values():
            policy["base"] = "tiny:debate"
        recipe["environment"]["level"] = twin["environment"]["level"]
    recipe["rewards"] = recipe.get("rewards", {"correct": 1.0}) | {f"{toy.__file__}:wordy": 1.0}
    recipe.get("engine", {}).pop("cache_gb", None)
    recipe["rollout"] |= {"groups": 2, "group_size": 2}
    recipe["trainer"]["steps"] = 1
    recipe["evaluation"] = {"tasks": 2, "samples": 2, "k": 2}
    return recipe


@pytest.mark.parametrize("name", [*REAL, *VARIANTS])
def test_a_recipe_for_real_models_trains_tiny_ones(name, model_folder, shared, tmp_path):
    if name in SANDBOX:
        working_sandbox()
    small = made_small(name, model_folder, shared / "data")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    assert command("train", tmp_path / "small.yaml", "--output", tmp_path / "run") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary["agents"]) == set(small["team"])


def test_every_recipe_is_tried_here_or_has_a_model_inside_the_package():
    assert set(recipe_names()) - {*REAL, *VARIANTS} == set(TWINS)


def test_every_real_recipe_has_a_twin():
    assert sorted(TWINS.values()) == sorted(REAL)
