"""`trainer.warm_start` stands for a stage of SFT before the run."""

from __future__ import annotations

import pytest

from rolecall.config.load import load, load_stages
from rolecall.core.errors import ConfigError
from rolecall.setup.plan import load_plan
from tests.toy import command, solo_config, write


@pytest.fixture
def file(model_folder, tmp_path):
    config = solo_config(model_folder, environment={"name": "math"}, evaluation={"tasks": 4})
    config["trainer"] |= {"steps": 5, "warm_start": 3}
    config["rollout"] |= {"curriculum": {"by": "source"}}
    return write(tmp_path / "c.yaml", config)


def test_the_file_has_two_stages_of_which_the_first_imitates(file):
    assert [stage.name for stage in load_stages(file)] == ["warm_start", "train"]
    warm, train = (load(file, [f"stage={name}"]) for name in ("warm_start", "train"))
    assert (warm.algorithm.name, warm.trainer.steps) == ("sft", 3)
    assert (warm.rollout.data, warm.rollout.groups, warm.rollout.group_size) == (
        "environment",
        32,
        1,
    )
    assert warm.rollout.curriculum is None
    assert train.rollout.data is None
    assert (train.algorithm.name, train.trainer.steps) == ("drmas", 5)
    assert train.rollout.curriculum is not None
    assert warm.trainer.warm_start == train.trainer.warm_start == 0


def test_what_takes_one_stage_takes_the_one_that_trains(file):
    assert load(file, ["trainer.steps=9"]) == load(file, ["trainer.steps=9", "stage=train"])
    for arguments in (["plan", file], ["eval", file], ["check", file, "--try", 2]):
        assert command(*arguments) == 0


def test_overrides_of_the_run_leave_the_warm_start_as_it_is(file):
    overrides = ["trainer.steps=9", "rollout.groups=2", "algorithm.clip=0.1", "trainer.seed=4"]
    warm = load(file, [*overrides, "stage=warm_start"])
    train = load(file, [*overrides, "stage=train"])
    assert (warm.trainer.steps, warm.rollout.groups, warm.algorithm.name) == (3, 32, "sft")
    assert (train.trainer.steps, train.rollout.groups) == (9, 2)
    assert train.algorithm.options == {"clip": 0.1}
    assert warm.trainer.seed == train.trainer.seed == 4


def test_a_command_line_sets_and_clears_it(file):
    assert load_stages(file, ["trainer.warm_start=0"]) == []
    assert load(file, ["trainer.warm_start=0"]).trainer.warm_start == 0
    longer = [
        "trainer.warm_start.steps=7",
        "trainer.warm_start.rows=8",
        "trainer.warm_start.lr=0.1",
    ]
    warm = load(file, ["trainer.warm_start={}", *longer, "stage=warm_start"])
    assert (warm.trainer.steps, warm.rollout.groups) == (7, 8)
    assert warm.policies["a"].optimizer is not None
    assert warm.policies["a"].optimizer.lr == 0.1


def test_adapters_have_a_rate_of_their_own(file):
    plain = load(file, ["stage=warm_start"]).policies["a"].optimizer
    adapted = load(file, ["policies.a.adapter={rank: 4}", "stage=warm_start"]).policies["a"]
    assert plain is not None
    assert plain.lr == 2e-5
    assert adapted.optimizer is not None
    assert adapted.optimizer.lr == 2e-4


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["trainer.warm_start=many"], "trainer.warm_start"),
        (["trainer.warm_start=-1"], "trainer.warm_start"),
        (["trainer.warm_start={steps: 2, turns: 3}"], "turns"),
    ],
)
def test_what_it_cannot_be_is_told(file, overrides, says):
    with pytest.raises(ConfigError, match=says):
        load_stages(file, overrides)


def test_a_stage_has_no_warm_start_of_its_own(model_folder, tmp_path):
    stage = {"name": "one", "trainer": {"warm_start": 3}}
    file = write(tmp_path / "c.yaml", solo_config(model_folder) | {"stages": [stage]})
    with pytest.raises(ConfigError, match=r"trainer\.warm_start: a single stage has none"):
        load_plan(file, ["stage=one"])


def test_a_file_with_stages_has_no_short_form(model_folder, tmp_path):
    config = solo_config(model_folder) | {"stages": [{"name": "one"}]}
    config["trainer"]["warm_start"] = 3
    with pytest.raises(ConfigError, match="the file has stages"):
        load_stages(write(tmp_path / "c.yaml", config))
