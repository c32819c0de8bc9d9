"""Recipes for real models train tiny random ones that have their names in a cache of the hub."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from rolecall.config.load import find, load, load_stages, recipe_names
from rolecall.config.schema import Config
from tests import toy
from tests.hub import COMMIT, make_home
from tests.retrieval import foreign
from tests.rewards.coach import server as coaches
from tests.sandbox.places import working_sandbox
from tests.support.evidence import leave_to_evidence
from tests.toy import command

pytestmark = pytest.mark.slow

FILE = Path(__file__).resolve().parents[2] / "benchmarks/prove_learning.py"
REAL = [
    "mathchat_coach", "drmas_math", "grpo_math", "drmas_search", "grpo_search",
    "data_science_coach", "debate_judge", "coder_tester", "maporl_math", "cory_math",
    "agentrl_mixed", "torl_math", "matpo_search", "spiral_kuhn", "mgrpo_search", "ppo_tools",
    "code_math_tools",
]  # fmt: skip
# Another algorithm on the team and data of one of them.
ALGORITHMS = [
    "ppo_math", "mappo_math", "happo_math", "vdn_math", "qmix_math", "at_grpo_math",
    "counterfactual_math", "dpo_math", "marft_math", "gigpo_search",
    "sft_rl_math", "leader_math", "step_math", "a2c_math", "marft_token_math", "vdn_value_math",
    "qmix_value_math", "spin_math", "preferences_math", "malt_math", "ma_airl_math",
    "world_model_math", "ab_mcts_code", "experience_math", "ttrl_math",
]  # fmt: skip
# Worlds in which random words earn nothing: they are built, and their twins take two steps.
WORLDS = ["at_grpo_plan_path", "at_grpo_sokoban", "at_grpo_sudoku", "read_kitchen"]
# Of real recipes, for other hardware and with the algorithm that is published beside theirs.
VARIANTS = [
    "drmas_math_24gb", "drmas_math_80gb", "drmas_math_8x80gb", "grpo_math_team",
    "grpo_search_team",
]  # fmt: skip
# On a model that is downloaded: tests/real/test_pretrained_recipes.py.
PRETRAINED = ["real_math", "real_math_whole", "real_calculator", "real_debate", "real_gsm8k"]
# A coach with a sandbox, a search, a judge, several environments, and a plain one.
KINDS = ["mathchat_coach", "drmas_search", "debate_judge", "agentrl_mixed", "drmas_math"]
SANDBOX = {
    "mathchat_coach", "data_science_coach", "coder_tester", "torl_math", "ppo_tools",
    "code_math_tools",
}  # fmt: skip
LEFT_OPEN = {
    "spin_math": "rollout.data=rows", "preferences_math": "rollout.data=rows",
    "ma_airl_math": "algorithm.experts=rows",
}  # fmt: skip


spec = importlib.util.spec_from_file_location("prove_learning", FILE)
assert spec is not None
assert spec.loader is not None
prove_learning = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prove_learning)
TWINS = prove_learning.TWINS


def complete(name: str) -> list[str]:
    """Return the overrides that choose the last stage and fill in what a recipe leaves open."""
    stages = load_stages(find(name), [])
    last = [f"stage={stages[-1].name}"] if stages else []
    return [*last, *([LEFT_OPEN[name]] if name in LEFT_OPEN else [])]


def scored(asked: coaches.Asked, score: int) -> coaches.Said:
    """With a verdict on the answer too, where the coach is shown the truth."""
    return asked.json(score, **({"answer_correct": 0} if "ground truth\n" in asked.user else {}))


@pytest.fixture
def at_home(hub_bases, tmp_path, monkeypatch):
    """A folder with all that the recipes name, and the servers that they ask."""
    make_home(tmp_path, hub_bases, monkeypatch)
    with foreign.serving(foreign.echo) as searched, a_coach() as url:
        yield tmp_path, searched.url, url


@contextmanager
def a_coach():
    """A server of Gemini's API that gives each action another score."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    serving = coaches.serving(lambda asked: scored(asked, len(asked.user) % 11))
    server = call(serving.__aenter__())
    try:
        yield server.url("google")
    finally:
        call(serving.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def smaller(name: str, config: Config, search_url: str, coach_url: str) -> dict:
    """What a CPU needs: fewer and shorter turns, a small cache, one rank. Models stay named."""
    changes = {
        "extends": name,
        "team": {agent: {"sampling": {"max_tokens": 6}} for agent in config.team},
        "rewards": {f"{toy.__file__}:wordy": 1.0},  # which random weights can earn
        "rollout": {"groups": 2, "group_size": 2},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 1, "samples": 1, "k": 1},
        "engine": {"cache_gb": 0.1},
        "environment": {"name": config.environment.name},
    }  # fmt: skip
    if "url" in config.environment.options:
        changes["environment"]["url"] = search_url
    if "coach" in config.prices:
        changes["policies"] = {"coach": {"engine": {"url": coach_url}}}
        changes["algorithm"] = {"name": config.algorithm.name, "mask_truncated": False}
    if name in (
        "drmas_search",
        "grpo_search_team",
    ):  # random words give no verdict, and then two agents never speak
        changes["workflow"] = {
            "name": "search_team", "on_unparsable": "no", "last_step": "answer",
        }  # fmt: skip
    if name == "agentrl_mixed":  # in a family of one task two alike attempts teach nothing
        changes["rollout"]["groups"] = 6
    if name == "spiral_kuhn":  # who moves first is drawn, and random words end the game there
        changes["rollout"]["groups"] = 6
    if config.learner.name != "local":
        changes["learner"] = {"name": config.learner.name, "ranks": 1}
    if name == "debate_judge":  # a debate without a winner is an error: random words name none
        judge = yaml.safe_load(find("debate").read_text())["team"]["judge"]
        changes["team"]["judge"] = {key: judge[key] for key in ("system", "sampling")}
        changes["policies"] = {"judge": {"base": "tiny:debate", "template": {}}}
    return changes


def moved(saved: Path, base: str, hub: Path) -> bool:
    """Whether weights are others than those that the run began with."""
    [file] = saved.glob("*.safetensors")
    found = load_file(file)
    if file.name.startswith("adapter"):  # the second matrix of each pair begins at 0
        assert all(".lora_" in key for key in found)
        return any(bool(found[key].any()) for key in found if "lora_B" in key)
    [begun] = hub.glob(f"models--{base.replace('/', '--')}/snapshots/{COMMIT}/*.safetensors")
    before = load_file(begun)
    assert found.keys() == before.keys()
    return any(not torch.equal(found[key].float(), before[key].float()) for key in found)


@pytest.mark.parametrize("name", leave_to_evidence([*REAL, *VARIANTS], keep=KINDS))
def test_a_recipe_for_real_models_trains_tiny_ones_of_their_names(name, at_home):
    """One step of the whole command: data, turns, scores, an update of all that is trained."""
    if name in SANDBOX:
        working_sandbox()
    folder, search_url, coach_url = at_home
    recipe = load(find(name))
    small = smaller(name, recipe, search_url, coach_url)
    (folder / "small.yaml").write_text(yaml.safe_dump(small))
    assert command("train", folder / "small.yaml", "--output", folder / "run") == 0
    records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    [step] = [record for record in records if record["kind"] == "step"]
    numbers = {key: value for key, value in step.items() if isinstance(value, float)}
    assert all(map(math.isfinite, numbers.values()))
    trained = [agent for agent, section in recipe.team.items() if section.trainable]
    # Random words hand nothing out.
    called = ["planner"] if "planner" in trained else trained
    for agent, section in recipe.team.items():
        if agent in called:
            exact = recipe.get_learner(section.policy).dtype == "float32"
            assert 0 < numbers[f"agent/{agent}/mismatch_max"] < (1e-4 if exact else 0.2)
    for policy in sorted({recipe.team[agent].policy for agent in called}):
        section = recipe.policies[policy]
        saved = folder / "run/checkpoints/step-1" / policy
        assert (saved / "adapter_config.json").exists() == (section.adapter is not None)
        assert moved(saved, section.base, folder / "hub")


def test_every_recipe_is_tried_here_or_has_a_model_inside_the_package():
    others = {*REAL, *ALGORITHMS, *WORLDS, *VARIANTS, *PRETRAINED}
    assert set(recipe_names()) - others == set(TWINS)


def test_every_real_recipe_has_a_twin():
    assert sorted(TWINS.values()) == sorted([*REAL, *ALGORITHMS, *WORLDS])


# Those that differ from `math` in more than the algorithm, which is tried in test_every_algorithm.
SMALL = ["math_at_grpo", "math_dpo", "math_sft_rl", "math_leader", "math_counterfactual"]
SMALL += [
    "math_ab_mcts",
    "math_spin",
    "math_preferences",
    "math_malt",
    "math_airl",
    "math_world_model",
    "math_experience",
    "math_ttrl",
]
SMALL += ["math_vdn_value", "math_qmix_value", "planner_mgrpo", "tools_ppo"]
SMALL += [twin for twin, real in TWINS.items() if real in WORLDS]


@pytest.mark.parametrize("name", leave_to_evidence(SMALL, keep=["math_dpo"]))
def test_the_small_twin_of_an_algorithm_takes_two_steps(name, tmp_path):
    less = ("trainer.steps=2", "rollout.groups=3", "rollout.group_size=4", "evaluation.tasks=0")
    assert command("train", name, *less, "--output", tmp_path / "run") == 0
    stages = load_stages(find(name), [])
    folder = tmp_path / "run" / (stages[-1].name if stages else ".")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    *_, step = (record for record in map(json.loads, lines) if record["kind"] == "step")
    recipe = load(find(name), complete(name))
    assert recipe.algorithm.name == load(find(TWINS[name]), complete(TWINS[name])).algorithm.name
    learned = [step.get(f"policy/{policy}/grad_norm", 0.0) for policy in recipe.trained_policies]
    assert max(learned) > 0, "in the second step: VDN and QMIX begin with their critic"
    assert all(map(math.isfinite, (v for v in step.values() if isinstance(v, float))))
