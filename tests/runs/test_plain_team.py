"""A model plays an environment without a config: `--model M --environment E -n N`."""

from __future__ import annotations

import json

import pytest

from rolecall.config.registry import BUILT_IN
from rolecall.core.types import Task
from rolecall.runs.evaluate import spread
from rolecall.runs.plain_team import NEED_A_CONFIG, TEAMS, plan_team
from tests.toy import command, relay_config, write

EXTRA = {"gem", "gymnasium", "llm", "reasoning_gym", "textarena"}  # need an option of their own


@pytest.mark.parametrize("name", sorted(set(BUILT_IN["environment"]) - {*NEED_A_CONFIG, *EXTRA}))
def test_every_environment_has_a_team_that_fits_it(name):
    plan = plan_team(name, ["tiny:math"], [], number=3)
    assert not plan.config.trained_policies
    assert plan.config.policies["model"].base == "tiny:math"


def test_teams_are_of_environments_that_are_there():
    assert set(TEAMS) <= set(BUILT_IN["environment"])


def test_a_model_is_evaluated_on_so_many_tasks(capsys):
    arguments = ["--model", "tiny:math", "--environment", "math", "-n", 8, "environment.level=2"]
    assert command("eval", *arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["num_tasks"] == 8
    assert "avg@1" in result


def test_tasks_are_spread_over_their_sources():
    tasks = [
        Task(f"{source}{n}", "?", info={"source": source}) for source in "ab" for n in range(5)
    ]
    assert [task.id for task in spread(tasks, 3)] == ["a0", "a1", "b0"]
    assert spread(tasks, 20) == tasks


def test_a_model_without_a_policy_is_that_of_all_policies(model_folder, tmp_path, capsys):
    config = relay_config(model_folder, trainer={"steps": 1})
    config["policies"]["a"]["base"] = config["policies"]["b"]["base"] = "tiny:none"
    team = write(tmp_path / "team.yaml", config)
    assert command("eval", team, "--model", model_folder, "-n", 2, "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_tasks"] == 2


def test_good_episodes_of_a_model_become_a_data_set(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    arguments = ["--model", "tiny:math", "--environment", "math", "-n", 24, "environment.level=2"]
    assert command("collect", *arguments, "--least", 1, "-o", file) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert 0 < len(rows) < 24
    assert all(row["reward"] >= 1 for row in rows)
    assert "from 24 episodes" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval"], "name a run, a config, or --model MODEL with --environment NAME"),
        (["eval", "--environment", "math"], "name the model that plays it: --model MODEL"),
        (["eval", "--model", "tiny:math", "--environment", "maths"], "nearest: math"),
        (["eval", "--model", "a=tiny:math", "--environment", "math"], "the only policy is"),
        (["eval", "--model", "tiny:math", "--environment", "mixed"], "write a config of it"),
        (["eval", "math", "--environment", "code"], "math has an environment already"),
        (["collect", "--model", "tiny:math", "--environment", "math"], "--output is missing"),
        (["collect", "math", "--model", "tiny:math", "-o", "x.jsonl"], "math has its models"),
        (["collect", "math", "-n", "3", "-o", "x.jsonl"], "write rollout.groups and"),
        (["collect", "-o", "x.jsonl"], "name a recipe, a run, or --model MODEL"),
        (
            ["collect", "--model", "x", "--environment", "math", "--agent", "bob", "-ox.jsonl"],
            "--agent: no agent 'bob'; write one of: solver",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert command(*arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_a_run_is_no_model(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("{}")
    run = tmp_path / "run"
    assert command("eval", "--model", run, "--environment", "math") == 2
    assert f"this is a run; write `rolecall eval {run}`" in capsys.readouterr().err
