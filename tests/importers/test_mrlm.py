"""Files of MRLM in the form of those that it ships: environments that train, and their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.core.errors import ConfigError
from rolecall.importers.importing import check, render
from rolecall.importers.keys import EDIT
from rolecall.importers.reading import read_values
from rolecall.importers.translating import FRAMEWORKS, Translation, translate

MRLM = FRAMEWORKS["mrlm"]
MODEL = "model: {model_name_or_path: gpt2, generation: {max_new_tokens: 512, top_p: 0.9}}\n"
CODE = """
training: {algorithm: ppo, num_epochs: 100, batch_size: 32, mini_batch_size: 8,
           num_rollouts_per_iteration: 64, max_episode_length: 128}
ppo: {clip_range: 0.2, clip_range_vf: null, target_kl: 0.02}
policy_env: {env_type: llm, mode: server}
eval_envs:
  - {env_type: code, mode: client, dataset: null, timeout: 5.0, max_attempts: 2, reward_scale: 1.0}
  - {env_type: code, mode: client, dataset: null, timeout: 5.0, max_attempts: 2, reward_scale: 1.0}
"""
MATHS = """
training: {algorithm: grpo, num_epochs: 50, batch_size: 8, max_episode_length: 5,
           episodes_per_iteration: 32}
grpo: {clip_range: 0.2, gamma: 1.0, num_grpo_epochs: 4, value_loss_coef: 0.5, group_size: 4,
       target_kl: 0.01, entropy_coef: 0.01}
eval_envs: [{env_type: math, mode: client, difficulty_range: [1, 3], max_turns: 5}]
"""
PREFERENCES = """
training: {algorithm: dpo, num_epochs: 20, batch_size: 4}
dpo: {beta: 0.1, label_smoothing: 0.0, reference_free: false}
dataset: {type: json, path: data/preferences.json}
output: {save_dir: outputs/dpo, log_interval: 10, eval_interval: 5, save_interval: 10}
"""
IMITATION = (
    MATHS.partition("grpo:")[0].replace("grpo", "sft")
    + """
sft: {mode: combined, bc_weight: 0.5, world_model_weight: 0.5, filter_low_reward: true,
      min_reward_threshold: 0.5, collect_every: 5, max_trajectories: 1000}
eval_envs: [{env_type: math, mode: client, difficulty_range: [1, 3], max_turns: 5}]
"""
)


def read(text: str) -> Translation:
    return translate(read_values(text + MODEL, MRLM), MRLM)


def config_of(text: str) -> dict:
    imported = read(text)
    assert not imported.refused_lines
    check(imported.config)
    return imported.config


def test_the_environments_called_eval_envs_are_trained_on():
    config = config_of(CODE)
    assert config["environment"] == {"name": "code", "score": "share", "wall_s": 5.0}
    assert config["workflow"] == {"name": "multi_turn", "max_turns": 2}
    assert config["rewards"] == {"mrlm_code": 1.0}
    assert config["rollout"]["groups"] == 64
    assert config["algorithm"]["minibatches"] == 8


def test_a_range_of_difficulty_and_several_attempts_at_maths_are_kept():
    config = config_of(MATHS)
    assert config["environment"] == {"name": "math", "level": [1, 3], "feedback": "verdict"}
    assert config["workflow"] == {"name": "multi_turn", "max_turns": 5}
    assert (config["rollout"]["groups"], config["rollout"]["group_size"]) == (8, 4)
    assert {"epochs": 4, "clip_low": 0.2, "entropy": 0.01}.items() <= config["algorithm"].items()
    assert config_of(MATHS.replace("[1, 3]", "[2, 2]"))["environment"]["level"] == 2


def test_environments_of_several_kinds_are_mixed():
    change = ("code, mode: client, dataset: null", "math, mode: client, dataset: sums.jsonl")
    two = CODE.replace(*change, 1)
    assert config_of(two)["environment"] == {
        "name": "mixed",
        "of": {
            "code": {"name": "code", "score": "share", "wall_s": 5.0},
            "math": {"name": "math", "train": "sums.jsonl", "feedback": "verdict"},
        },
    }


def test_preferences_are_passes_over_their_file():
    config = config_of(PREFERENCES)
    assert config["rollout"]["data"] == "data/preferences.json"
    assert config["rollout"]["groups"] == 4
    assert config["trainer"] == {"epochs": 20, "save_every": 10}
    assert config["evaluation"]["tasks"] == 0


def test_imitation_plays_and_trains_in_two_stages():
    config = config_of(IMITATION)
    play, imitate = config["stages"]
    assert play["collect"] == {"imitate": "both", "least": 0.5, "world_weight": 1.0}
    heavy = config_of(IMITATION.replace("world_model_weight: 0.5", "world_model_weight: 0.25"))
    assert heavy["stages"][0]["collect"]["world_weight"] == 0.5
    assert play["rollout"] == {"groups": 320}  # 32 in every fifth of 50 epochs
    assert imitate == {"name": "imitate", "from": "play", "rollout": {"groups": 8},
                       "trainer": {"epochs": 50}}  # fmt: skip


def test_what_is_only_nearly_the_same_is_reported_and_stops_nothing():
    penalty = CODE + MODEL.replace("{max_new", "{repetition_penalty: 1.1, max_new")
    imported = translate(read_values(penalty, MRLM), MRLM)
    assert not imported.refused_lines
    [line] = imported.select_lines("differs")
    assert line.key == "model.generation.repetition_penalty"
    text = render(imported, [Path("c.yaml")])
    assert f"# Differs from there: {line.key}=1.1: it would train another" in text
    assert not read(CODE).select_lines("differs")
    assert read(CODE).config["algorithm"]["target_kl"] == 0.02


def test_an_unknown_algorithm_is_left_to_fill_in():
    imported = read(CODE.replace("algorithm: ppo", "algorithm: ppo2"))
    assert imported.config["algorithm"]["name"] == EDIT
    assert imported.edits == {"algorithm.name": "ppo2 there, which is not known here"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("timeout: 5.0", "timeout: 9.0"), "timeout: environments of one kind differ in it"),
        (("reward_scale: 1.0", "reward_clip: 1.0"), "reward_clip: no bounds on rewards"),
        (("timeout: 5.0", "time_out: 5.0"), "time_out: no key of an environment of MRLM"),
        (("env_type: code", "env_type: debate"), "write a team for environment: debate"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_the_reason(change, said):
    try:
        reasons = [line.said for line in read(CODE.replace(*change, 1)).refused_lines]
    except ConfigError as error:
        reasons = [str(error)]
    assert any(said in reason for reason in reasons)


def test_several_gpus_are_those_of_a_learner_with_ranks():
    several = "distributed: {enabled: true, strategy: fsdp, num_gpus: 4}\n"
    assert config_of(MATHS + several)["learner"] == {"name": "fsdp", "ranks": 4}
    assert "learner" not in config_of(MATHS + several.replace("true", "false"))
    [line] = read(MATHS + several.replace("fsdp", "deepspeed")).refused_lines
    assert line.key == "distributed.strategy"


def test_a_config_in_a_page_of_markdown_is_read(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"# It's a page\n\n```yaml\na: 1\n```\n\n```yaml\n{MATHS}```\n\nEnd\n")
    values = read_values(page.read_text(), MRLM, path=page)
    assert values["training.algorithm"] == "grpo"


def test_a_base_that_has_no_chat_template_gets_a_plain_one():
    config = translate(read_values(CODE + MODEL, MRLM), MRLM).config
    assert config["policies"]["policy"]["chat_template"] == "plain"
