"""What a file gives a single agent becomes that agent's, or is refused."""

from __future__ import annotations

import re

import pytest

from rolecall.importers.importing import check
from rolecall.importers.translating import FRAMEWORKS, Translation, translate
from tests.importers.test_translating import ACTOR, MATH_TEAM, OWN, SEARCH_TEAM

LR = {f"{ACTOR}.optim.lr": None, f"{OWN}actor.optim.lr": [1e-6, 3e-6]}


def import_drmas(change: dict) -> Translation:
    return translate(MATH_TEAM | {f"{ACTOR}.ppo_mini_update_num": 1} | change, FRAMEWORKS["drmas"])


def refused(translation: Translation) -> list[tuple[str, str]]:
    return [(line.key, line.said) for line in translation.refused_lines]


def test_agents_get_rates_samplings_and_penalties_of_their_own():
    own = {
        "rollout.temperature": [1.0, 0.7],
        "rollout.response_length": [512, 99],
        "actor.invalid_action_penalty_coef": [0.1, 0.5],
        "actor.optim.weight_decay": [0.0, 0.1],
        "rollout.top_p": [1.0, 0.9],
        "model.lora_rank": [0, 8],
    }
    translation = import_drmas(LR | {f"{OWN}{key}": value for key, value in own.items()})
    assert refused(translation) == []
    config = translation.config
    check(config)
    solver, verifier = config["team"]["solver"], config["team"]["verifier"]
    assert (solver["sampling"]["temperature"], verifier["sampling"]["temperature"]) == (1.0, 0.7)
    assert (solver["sampling"]["max_tokens"], verifier["sampling"]["max_tokens"]) == (512, 99)
    assert "top_p" not in solver["sampling"]
    assert verifier["sampling"]["top_p"] == 0.9
    assert config["rollout"]["allow_filtered_sampling"]
    assert (solver["invalid_penalty"], verifier["invalid_penalty"]) == (0.1, 0.5)
    rates = {name: policy["optimizer"]["lr"] for name, policy in config["policies"].items()}
    assert rates == {"solver": 1e-6, "verifier": 3e-6}
    decays = [policy["optimizer"]["weight_decay"] for policy in config["policies"].values()]
    assert decays == [0.0, 0.1]
    assert "adapter" not in config["policies"]["solver"]
    assert config["policies"]["verifier"]["adapter"]["rank"] == 8


def test_an_agent_with_another_clip_gets_an_algorithm_of_its_own():
    own = {
        f"{OWN}actor.clip_ratio_high": [0.2, 0.3],
        f"{OWN}model.enable_gradient_checkpointing": [True, False],
    }
    config = import_drmas(own).config
    check(config)
    assert config["algorithm"]["clip_high"] == 0.2
    assert "algorithm" not in config["team"]["solver"]
    assert config["team"]["verifier"]["algorithm"] == config["algorithm"] | {"clip_high": 0.3}
    assert config["policies"]["verifier"]["learner"] == {"checkpoint_activations": False}
    assert "learner" not in config["policies"]["solver"]


def test_what_all_agents_have_alike_is_said_once():
    config = import_drmas({f"{OWN}actor.clip_ratio_high": [0.3, 0.3]}).config
    assert config["algorithm"]["clip_high"] == 0.3
    assert all("algorithm" not in agent for agent in config["team"].values())


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("actor.clip_ratio_high", [0.2], "1 values for 2 agents"),
        ("actor.optim.weight_decay", [0.2, "x"], "verifier: .*not a number"),
        ("rollout.val_kwargs.temperature", [0.2, 0.3], "no agent has a value of its own"),
        ("actor.loss_agg_mode", ["token-mean", "max"], "verifier: .*no such mean"),
    ],
)
def test_what_agents_cannot_differ_in_is_refused(key, value, reason):
    [(name, text)] = refused(import_drmas({f"{OWN}{key}": value}))
    assert name == f"{OWN}{key}"
    assert re.search(reason, text)


def test_search_keeps_all_servers_the_documents_and_the_time():
    urls = ["http://a:8000/retrieve", "http://b:8001/retrieve"]
    change = {"env.search.search_url": urls, "env.search.topk": 5, "env.search.timeout": 9}
    environment = translate(SEARCH_TEAM | change, FRAMEWORKS["drmas"]).config["environment"]
    assert environment["url"] == ["http://a:8000", "http://b:8001"]
    assert (environment["topk"], environment["deadline_s"]) == (5, 9)


def test_agents_with_memory_see_what_they_said_in_place_of_the_history():
    change = {"agent.use_agent_memory": True, "env.history_length": 4}
    config = translate(SEARCH_TEAM | change, FRAMEWORKS["drmas"]).config
    check(config)
    assert all(agent["memory"] for agent in config["team"].values())
    assert config["workflow"]["history"] == 0


def test_pass_at_k_of_a_group_credits_the_only_right_attempt():
    change = {"algorithm.adv_estimator": "grpo_passk", "env.rollout.n": 8}
    translation = import_drmas(change)
    check(translation.config)
    algorithm = translation.config["algorithm"]
    assert (algorithm["name"], algorithm["k"], algorithm["right"]) == ("pass_at_k", 7, 0.5)
    [line] = translation.select_lines("differs")
    assert line.key == "algorithm.adv_estimator"
