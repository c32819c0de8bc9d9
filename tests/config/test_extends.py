"""A config that extends another one says only what differs."""

from __future__ import annotations

import pytest

from rolecall.config.load import find, load
from rolecall.core.errors import ConfigError
from tests.toy import relay_config, write


def test_what_differs_is_merged_over_the_rest(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: math\ntrainer: {steps: 7}\nteam: {solver: {system: Think.}}\n")
    found, base = load(mine), load(find("math"))
    assert found.trainer.steps == 7
    assert found.team["solver"].system == "Think."
    assert found.team["solver"].policy == base.team["solver"].policy
    assert found.rollout == base.rollout
    assert load(mine, ["trainer.steps=8"]).trainer.steps == 8


def test_another_name_starts_anew_and_the_same_name_adds_options(model_folder, tmp_path):
    config = relay_config(model_folder, algorithm={"name": "grpo", "clip_low": 0.1})
    write(tmp_path / "first.yaml", config)
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text("extends: first.yaml\nalgorithm: {name: grpo, clip_high: 0.3}\n")
    other.write_text("extends: first.yaml\nalgorithm: rloo\n")
    assert load(same).algorithm.options == {"clip_low": 0.1, "clip_high": 0.3}
    assert load(other).algorithm.options == {}


def test_a_mistake_is_told_where_it_stands(model_folder, tmp_path):
    write(tmp_path / "first.yaml", relay_config(model_folder, trainer={"steps": 0}))
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: first.yaml\nrollout: {groups: 0}\n")
    with pytest.raises(ConfigError) as raised:
        load(mine)
    lines = sorted(raised.value.problems)
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "trainer.steps",
        "rollout.groups",
    ]
    assert lines[0].startswith(f"{tmp_path}/first.yaml:")
    assert lines[1].startswith(f"{mine}:2: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("extends: nowhere\n", "there is no recipe 'nowhere'"),
        ("extends: nowhere.yaml\n", "there is no file nowhere.yaml"),
        ("extends: mine.yaml\n", "extends: .*mine.yaml extends itself"),
        ("extends: other.yaml\n", "extends: .* extends itself, or 8 files one another"),
        ("extends: [math]\n", "there is no recipe"),
    ],
)
def test_what_cannot_be_extended_is_one_line(text, told, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    (tmp_path / "other.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(ConfigError, match=told):
        load(mine)
