"""Keys of earlier versions whose contents are elsewhere now are answered in a line each."""

from __future__ import annotations

import pytest

from rolecall.config.load import load
from rolecall.config.moved_keys import ASKED, COACH
from rolecall.core.errors import ConfigError
from rolecall.setup.plan import validate
from tests.toy import relay_config, write

SERVER = {"name": "openai", "url": "http://127.0.0.1:9/v1", "model": "m"}
OF_COACH = sorted(ASKED.keys() - {"url"})
OF_USER = ["model", "url", "key_env", "temperature", "max_tokens", "concurrency", "request_s",
           "deadline_s"]  # fmt: skip


def answer(model_folder, tmp_path, override: str, **changes) -> str:
    """What is said of one key on the command line of a config that is right without it."""
    config = relay_config(model_folder)
    config["policies"]["judge"] = {"engine": SERVER}
    config |= {"rewards": {"coach": {"policy": "judge"}}} | changes
    path = write(tmp_path / "c.yaml", config)
    with pytest.raises(ConfigError) as raised:
        validate(load(path, [override]))
    [line] = raised.value.problems
    return line


@pytest.mark.parametrize("option", OF_COACH)
def test_what_a_coach_asked_with_is_of_the_policy_that_it_names(model_folder, tmp_path, option):
    line = answer(model_folder, tmp_path, f"rewards.coach.{option}=1")
    assert line == (
        f"command line: rewards.coach.{option}: this key is now {ASKED[option]} where "
        "rewards.coach.policy is NAME"
    )


@pytest.mark.parametrize(("option", "now"), COACH.items())
def test_options_of_a_coach_stand_in_sections(model_folder, tmp_path, option, now):
    line = answer(model_folder, tmp_path, f"rewards.coach.{option}=1")
    assert line == f"command line: rewards.coach.{option}: this key is now rewards.coach.{now}"
    section, _, key = now.partition(".")
    line = answer(model_folder, tmp_path, f"rewards.coach.{section}.{key}x=1")
    assert f"did you mean {key}" in line


def test_a_provider_is_an_engine_and_local_is_another_reward(model_folder, tmp_path):
    line = answer(model_folder, tmp_path, "rewards.coach.provider=anthropic")
    for words in ("policy: NAME", "engine: {name: openai", "policies.NAME", "checked_steps"):
        assert words in line


@pytest.mark.parametrize("option", OF_USER)
def test_what_a_simulated_user_asked_with_is_of_its_policy(model_folder, tmp_path, option):
    user = {"name": "llm", "policy": "judge", "system": "s", "train": "a", "test": "a"}
    override = f"environment.{option}=1"
    line = answer(model_folder, tmp_path, override, environment=user)
    assert line == (
        f"command line: environment.{option}: this key is now {ASKED[option]} where "
        "environment.policy is NAME"
    )


def test_an_environment_that_asks_nobody_is_answered_as_before(model_folder, tmp_path):
    line = answer(model_folder, tmp_path, "environment.url=x", environment={"name": "math"})
    assert "this key is now" not in line


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("engine", "prices.NAME.{} where NAME is a policy of this engine"),
        ("policies.judge.engine", "prices.judge.{}"),
    ],
)
@pytest.mark.parametrize(
    ("option", "price"), [("input", "prompt"), ("cached", "cached"), ("output", "completion")]
)
def test_an_engine_s_prices_are_in_the_one_table(
    model_folder, tmp_path, place, told, option, price
):
    key = f"{place}.usd_per_million_{option}"
    line = answer(model_folder, tmp_path, f"{key}=1")
    assert line.endswith(f"{key}: this key is now {told.format(price)}")
