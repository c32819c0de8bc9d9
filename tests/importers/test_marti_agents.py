"""What MARTI's files say of single agents, of all of them, and of those that only a server has."""

from __future__ import annotations

import copy

import pytest

from rolecall.importers.importing import check, import_files
from rolecall.importers.translating import FRAMEWORKS, Translation, translate
from tests.importers.test_translating import CHAIN_RUN, FIRST_RUN

API = [{role: {"role": role, "is_api_model": True, "model_name": "gpt-9"}}
       for role in ("generator", "verifier", "refiner")]  # fmt: skip


def import_chain(change: dict, own: dict | None = None, name: str = "marti") -> Translation:
    values = copy.deepcopy(CHAIN_RUN if name == "marti" else FIRST_RUN)
    values["agents"][1][next(iter(values["agents"][1]))] |= own or {}
    return translate(values | change, FRAMEWORKS[name])


def test_an_agent_keeps_its_own_values():
    own = {"generate_max_len": 99, "actor_learning_rate": 1e-3, "entropy_loss_coef": 0.5}
    translation = import_chain({}, own)
    assert translation.refused_lines == []
    check(translation.config)
    team, policies = translation.config["team"], translation.config["policies"]
    lengths = [agent["sampling"]["max_tokens"] for agent in team.values()]
    assert lengths == [1024, 99, 1024]
    assert policies["verifier"]["optimizer"]["lr"] == 1e-3
    assert policies["generator"]["optimizer"]["lr"] == 1e-6
    assert team["verifier"]["algorithm"]["entropy"] == 0.5
    assert "algorithm" not in team["generator"]


def test_what_agents_share_is_refused_of_a_single_one():
    [line] = import_chain({}, {"rollout_batch_size": 8}).refused_lines
    assert line.key == "agents"
    assert "verifier" in line.said
    assert "rollout_batch_size" in line.said


def test_a_team_behind_servers_is_written_to_be_played():
    translation = translate(FIRST_RUN | {"agents": API}, FRAMEWORKS["marti_v1"])
    assert translation.refused_lines == []
    check(translation.config)
    assert not any(agent["trainable"] for agent in translation.config["team"].values())
    assert "rolecall eval FILE" in translation.select_lines("differs")[0].said


def test_agents_that_say_nothing_of_it_are_trained_as_the_file_says():
    own = {"is_tuning": True}
    team = import_chain({"is_tuning": False}, own, "marti_v1").config["team"]
    assert [agent.get("trainable", True) for agent in team.values()] == [False, True, False]


def test_a_critic_of_its_own_reads_beside_the_policies():
    change = {"advantage_estimator": "gae", "critic_pretrain": "c/d", "critic_learning_rate": 1e-3}
    config = import_chain(change).config
    assert config["algorithm"]["name"] == "ppo_critic"
    assert config["critics"]["token"]["base"] == "c/d"
    assert config["critics"]["token"]["optimizer"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("estimator", "key", "value"),
    [("gae", "whiten", False), ("reinforce_baseline", "std", None)],
)
def test_advantages_are_not_divided_where_there_is_such_an_option(estimator, key, value):
    translation = import_chain({"advantage_estimator": estimator, "no_advantage_std_norm": True})
    assert translation.config["algorithm"].get(key) == value
    refused = [line.key for line in translation.refused_lines]
    assert refused == ([] if estimator == "gae" else ["no_advantage_std_norm"])


@pytest.mark.parametrize(("probs", "stratify"), [("0.5,0.5", "equal"), ("0.9,0.1", None)])
def test_equal_shares_of_files_are_kept(probs, stratify):
    change = {"prompt_data": "json@/a,json@/b", "prompt_data_probs": probs}
    translation = import_chain(change)
    assert translation.config["environment"]["train"] == ["/a", "/b"]
    assert translation.config["rollout"].get("stratify") == stratify
    assert bool(translation.refused_lines) == (stratify is None)


def test_overrides_may_be_of_their_own_keys(tmp_path, capsys):
    file = tmp_path / "chain.yaml"
    file.write_text(
        "agent_workflow: chain-of-agents\ndefault_agent: {pretrain: a/b}\n"
        "prompt_data: a.json\nextra_eval_tasks: [aime]\nextra_eval_dir: /bench\n"
        "agents:\n- generator: {role: generator}\n- verifier: {role: verifier}\n"
        "- refiner: {role: refiner}\n"
    )
    overrides = ["default_agent.pretrain=c/d", "+n_samples_per_prompt=4", "trainer.steps=7"]
    _, translation = import_files([file], overrides, source=None, partial=False)
    assert translation.config["policies"]["verifier"]["base"] == "c/d"
    assert translation.config["rollout"]["group_size"] == 4
    assert translation.config["trainer"]["steps"] == 7


def test_a_data_set_of_the_hub_is_to_be_made_a_file_of_preferences():
    values = {
        "training.algorithm": "dpo",
        "model.model_name_or_path": "a/b",
        "dataset.name": "Anthropic/hh-rlhf",
    }
    translation = translate(values, FRAMEWORKS["mrlm"])
    assert "Anthropic/hh-rlhf" in translation.edits["rollout.data"]
