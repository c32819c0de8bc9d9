"""Every reward that a config can name is made of its options."""

from __future__ import annotations

import pytest

from rolecall.config.registry import BUILT_IN
from rolecall.config.schema import RewardConfig
from rolecall.core.errors import ConfigError
from rolecall.setup.rewards import make_reward, reward_component

WEIGHTS = {"planner_form": 0.1, "planner_correct": 0.9, "worker_form": 0.1, "worker_planner": 0.9}


def made_of(name, given):
    part, weight = reward_component(name, given)
    return make_reward(part, {}), weight


NEEDS = {"judge": ("policy", "prompt"), "remote_model": ("url",)}  # options without a default
NAMES = sorted(set(BUILT_IN["reward"]) - {"coach", "correct", "mgrpo", "reward_model", *NEEDS})


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_has_defaults_and_refuses_what_it_does_not_know(name):
    made, weight = made_of(name, 1.0)
    assert callable(made)
    assert weight == 1.0
    with pytest.raises(ConfigError, match="surprise"):
        made_of(name, RewardConfig(surprise=1))


@pytest.mark.parametrize("name", NEEDS)
def test_a_reward_names_each_option_that_it_needs(name):
    with pytest.raises(ConfigError) as error:
        made_of(name, RewardConfig(surprise=1))
    for option in (*NEEDS[name], "surprise"):
        assert f"rewards.{name}.{option}: " in str(error.value)


def test_mgrpo_asks_for_its_weights_and_takes_no_other():
    made, _ = made_of("mgrpo", RewardConfig(**WEIGHTS))
    assert made.worker_planner == 0.9
    with pytest.raises(ConfigError, match="planner_form"):
        made_of("mgrpo", 1.0)
    with pytest.raises(ConfigError, match="weight has no effect"):
        made_of("mgrpo", RewardConfig(weight=0.5, **WEIGHTS))


def test_a_share_that_is_none_is_an_error_of_the_config():
    with pytest.raises(ConfigError, match=r"rewards.proposals: own is a share"):
        made_of("proposals", RewardConfig(own=2.0))
