"""What people try first on a command line is answered."""

from __future__ import annotations

import pytest

from rolecall.cli.main import _was_interrupted
from rolecall.cli.unknown_options import key_named
from rolecall.config.load import load
from rolecall.runs.agents_table import describe_agents, find_differences
from rolecall.setup.plan import validate
from tests.cli.test_cli import refused, rolecall
from tests.toy import relay_config, write


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--version"], "rolecall "),
        (["-h"], "--install-completion"),
        (["train", "-h"], "RECIPE|FILE|RUN"),
        (["tiny", "build", "-h"], "--hidden"),
    ],
)
def test_versions_and_help_are_shown(arguments, told, capsys):
    status, out, _ = rolecall(*arguments, capsys=capsys)
    assert status == 0
    assert told in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "math", "--steps", "3"], "--steps: no such option; write trainer.steps=3"),
        (["train", "math", "--seed=7"], "--seed: no such option; write trainer.seed=7"),
        (["check", "math", "--max-tokens", "9"], "write team.NAME.sampling.max_tokens=9"),
        (["plan", "math", "--learning-rate"], "write policies.NAME.optimizer.lr=VALUE"),
        (
            ["check", "nosuch"],
            "there is no recipe 'nosuch', and no file or run folder of that name",
        ),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_the_override(arguments, told, capsys):
    assert told in refused(*arguments, capsys=capsys)


def test_names_that_several_sections_have_mean_the_usual_one():
    assert key_named("group_size") == "rollout.group_size"
    assert key_named("num_generations") == "rollout.group_size"
    assert key_named("nothing_at_all") == ""


def test_a_run_shows_only_what_differs(model_folder, tmp_path):
    config = relay_config(model_folder)
    plan = validate(load(write(tmp_path / "a.yaml", config)))
    rows = {row for values in find_differences(plan).values() for row in values}
    assert rows == {"policy", "trained", "algorithm", "lr", "max_tokens"}
    config["team"]["left"]["sampling"] = {"max_tokens": 8, "temperature": 0.5}
    config["policies"]["b"]["adapter"] = {"rank": 8}
    config["algorithm"] = {"name": "drmas", "clip_high": 0.3}
    plan = validate(load(write(tmp_path / "b.yaml", config)))
    shown = find_differences(plan)
    assert {row for values in shown.values() for row in values} == {
        *rows, "temperature", "clip_high",
    }  # fmt: skip
    assert shown["last"]["trained"] == "adapter, rank 8, alpha 16"
    assert len(describe_agents(plan)["left"]) > 20


@pytest.mark.parametrize(("rank", "alpha"), [(8, 16.0), (32, 64.0)])
def test_an_adapter_of_any_rank_learns_at_one_scale(rank, alpha, model_folder, tmp_path):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    found = load(path, [f"policies.a.adapter.rank={rank}"]).policies["a"].adapter
    assert found is not None
    assert found.alpha == alpha
    own = load(path, ["policies.a.adapter={rank: 8, alpha: 64}"]).policies["a"].adapter
    assert own is not None
    assert own.alpha == 64.0
    assert load(write(tmp_path / "again.yaml", {
        **relay_config(model_folder), "policies": load(path, ["policies.a.adapter={rank: 8}"])
        .model_dump(mode="json")["policies"],
    })).policies["a"].adapter.alpha == 16.0  # fmt: skip


def test_errors_that_are_their_own_cause_are_looked_through_once():
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__cause__, second.__cause__ = second, first
    assert not _was_interrupted(first)
    second.__cause__ = KeyboardInterrupt()
    assert _was_interrupted(first)
