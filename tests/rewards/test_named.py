"""Every reward that a config can name is made of its options."""

from __future__ import annotations

import pytest

from rolecall.assembly import _reward
from rolecall.config import RewardConfig
from rolecall.config_errors import ConfigError
from rolecall.registry import BUILT_IN

WEIGHTS = {"planner_form": 0.1, "planner_correct": 0.9, "worker_form": 0.1, "worker_planner": 0.9}
NAMES = sorted(set(BUILT_IN["reward"]) - {"coach", "correct", "mgrpo"})


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_has_defaults_and_refuses_what_it_does_not_know(name):
    made, weight = _reward(name, 1.0)
    assert callable(made)
    assert weight == 1.0
    with pytest.raises(ConfigError, match="surprise"):
        _reward(name, RewardConfig(surprise=1))


def test_mgrpo_asks_for_its_weights_and_takes_no_other():
    made, _ = _reward("mgrpo", RewardConfig(**WEIGHTS))
    assert made.worker_planner == 0.9
    with pytest.raises(ConfigError, match="planner_form"):
        _reward("mgrpo", 1.0)
    with pytest.raises(ConfigError, match="weight has no effect"):
        _reward("mgrpo", RewardConfig(weight=0.5, **WEIGHTS))


def test_a_share_that_is_none_is_an_error_of_the_config():
    with pytest.raises(ConfigError, match=r"rewards.proposals: own is a share"):
        _reward("proposals", RewardConfig(own=2.0))
