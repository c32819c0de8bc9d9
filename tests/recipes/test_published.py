"""Recipes have the numbers that were published, and are what `rolecall import` makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.config.load import find, load
from rolecall.importers.importing import import_files
from rolecall.setup.plan import validate
from tests.importers.marti_files import script_v1, write_repository
from tests.recipes.published import DSBENCH, MATHCHAT, write_options

SANDBOX = "tools_config.tools.code_interpreter."
# What an import cannot know or says otherwise: prompts, places, prices, and where things run.
OWN = (
    "team.*.system", "team.*.tools.use", "environment.train", "environment.test",
    "environment.root", "evaluation.tasks", "learner.offload", "policies.coach.engine.budget_usd",
    "policies.coach.engine.vertex", "prices.coach", "rewards.coach.cache", "rewards.coach.rubric",
    "rewards.coach.view.team", "rollout.timeout_s", "trackers",
)  # fmt: skip
# What an import says though it is the default.
DEFAULTS = {
    "algorithm.agg": "token", "algorithm.clip_low": 0.2, "algorithm.clip_high": 0.2,
    "algorithm.epochs": 1, "algorithm.gamma": 1, "algorithm.kl_in": "reward",
}  # fmt: skip


def flat(value: object, *key: str) -> dict[str, object]:
    """{"a": {"b": 1}} -> {"a.b": 1}; agents and policies that are trained stand as `*`."""
    if not isinstance(value, dict):
        return {".".join(key): value}
    found: dict[str, object] = {}
    for name, each in value.items():
        found |= flat(each, *key, "*" if key == ("team",) else name)
    return found


def compared(path: Path, *overrides: str) -> dict[str, object]:
    """The resolved values of a config, but for those of `OWN`."""
    values = flat(load(path, list(overrides)).model_dump(mode="json"))
    if values["rollout.max_tasks"] == DSBENCH["max_samples"]:  # more than there are rows
        values["rollout.max_tasks"] = None
    return {key: value for key, value in values.items() if not key.startswith(OWN)}


@pytest.mark.parametrize(
    ("recipe", "name", "options"),
    [
        (
            "mathchat_coach",
            "mathchat_with_coach",
            write_options(
                MATHCHAT, "workflow_args.coach_model=gemini-2.5-flash", f"{SANDBOX}timeout=30"
            ),
        ),
        (
            "data_science_coach",
            "tables",
            write_options(
                DSBENCH,
                "workflow_args.coach_model=gemini-2.5-pro",
                "workflow_args.enable_ground_truth_eval=true",
                "workflow_args.coach_prompt_template='Judge {agent_name}. PROCESS_SCORE: x'",
                f"{SANDBOX}timeout=60",
                f"{SANDBOX}base_url=http://h:$PORT/run_code",
            ),
        ),
    ],
)
def test_a_recipe_with_a_coach_is_what_the_published_script_imports_as(
    recipe, name, options, tmp_path
):
    write_repository(tmp_path)
    text, _ = import_files(
        [script_v1(tmp_path, name, options=options)], [], source=None, partial=False
    )
    imported = tmp_path / "imported.yaml"
    imported.write_text(text)
    base = "Qwen/Qwen3-4B-Thinking-2507"
    bases = [f"policies.{agent}.base={base}" for agent in load(find(recipe)).trained_policies]
    ours, theirs = compared(find(recipe)), compared(imported, *bases)
    differing = {key: value for key, value in theirs.items() if ours.get(key, value) != value}
    assert differing == {}
    assert {key: theirs[key] for key in theirs.keys() - ours.keys()} == {
        key: value for key, value in DEFAULTS.items() if key in theirs
    }
    assert ours.keys() <= theirs.keys()


@pytest.mark.parametrize("name", ["math", "search"])
def test_the_team_of_grpo_differs_from_that_of_dr_mas_in_what_its_script_leaves_out(name):
    """`group_by_agent_id`: whose scores a turn's is compared with. All numbers are the same."""
    grpo, drmas = (
        flat(load(find(recipe)).model_dump(mode="json"))
        for recipe in (f"grpo_{name}_team", f"drmas_{name}")
    )
    assert {key for key in grpo.keys() | drmas.keys() if grpo.get(key) != drmas.get(key)} == {
        "algorithm.name",
        "algorithm.agg",  # its default for grpo is another
    }
    assert (grpo["algorithm.name"], grpo["algorithm.agg"]) == ("grpo", "token")
    [credit] = {
        (one.mean, one.std, one.count)
        for one in validate(load(find(f"grpo_{name}_team"))).algorithms.values()
    }
    assert credit == ("task", "task", "episode_agent")  # all attempts, each counted once


@pytest.mark.parametrize(
    ("recipe", "environment", "numbers"),
    [
        ("drmas_math", "math", {"minibatches": 1, "entropy": 0.0}),
        ("drmas_search", "search", {"minibatches": 5, "entropy": 0.001}),
    ],
)
def test_the_recipes_of_dr_mas_have_its_published_numbers(recipe, environment, numbers):
    config = load(find(recipe))
    for name in config.trained_policies:
        optimizer = config.policies[name].optimizer
        assert (optimizer.lr, optimizer.weight_decay, optimizer.clip) == (1e-6, 0.01, 1.0)
        assert optimizer.schedule == "constant"
    assert config.environment.name == environment
    for algorithm in validate(config).algorithms.values():
        assert {key: getattr(algorithm, key) for key in numbers} == numbers
        assert (algorithm.clip_low, algorithm.dual_clip, algorithm.kl) == (0.2, 3.0, 0.0)


def test_mathchat_has_its_published_numbers():
    config = load(find("mathchat_coach"))
    assert (config.rollout.max_tasks, config.trainer.seed) == (512, 42)
    assert (config.rollout.groups, config.rollout.group_size) == (32, 2)
    assert (config.trainer.epochs, config.trainer.save_every) == (8, 32)
    assert (config.evaluation.samples, config.evaluation.every) == (4, 4)
    assert {a.sampling.max_tokens for a in config.team.values()} == {4096}
    assert {a.sampling.temperature for a in config.team.values()} == {1.0}
    assert {config.policies[name].optimizer.lr for name in config.trained_policies} == {1e-6}
    coach = config.rewards["coach"]
    assert (coach.scale, coach.w_process, coach.w_outcome) == (10, 1, 0)
    assert config.policies["coach"].engine.model == "gemini-2.5-flash"
    assert config.environment.options["train"] == "data/aime-1983-2024"


def test_dsbench_has_its_published_numbers():
    config = load(find("data_science_coach"))
    assert (config.rollout.groups, config.rollout.group_size) == (16, 2)
    assert config.rollout.stratify == "proportional"
    assert (config.trainer.epochs, config.trainer.save_every) == (30, 4)
    assert (config.evaluation.samples, config.evaluation.every) == (4, 2)
    assert {a.sampling.max_tokens for a in config.team.values()} == {16384}
    assert {a.tools.max_calls for a in config.team.values()} == {3}  # and a turn that ends it
    assert config.environment.options["wall_s"] == 60
    coach = config.rewards["coach"]
    assert (coach.scale, coach.w_process, coach.w_outcome) == (10, 10, 0)
    assert len(coach.rubric["blame"]) == 4
    assert config.policies["coach"].engine.model == "gemini-2.5-pro"
