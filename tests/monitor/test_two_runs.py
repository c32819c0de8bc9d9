"""Two runs side by side, on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from rolecall.monitor.two_runs import compare_runs
from rolecall.storage.episode_io import write_parquet
from tests.monitor.runs_for_tests import episode, evaluation_record, make_run, step_record
from tests.toy import command


@pytest.fixture
def runs(tmp_path):
    one = make_run(
        tmp_path / "one",
        records=[evaluation_record(0, "before", 0.1), evaluation_record(9, "after", 0.5)],
    )
    other = make_run(
        tmp_path / "other",
        records=[evaluation_record(0, "before", 0.1), evaluation_record(9, "after", 0.7)],
    )
    config = yaml.safe_load(other.config.read_text())
    config["trainer"]["seed"] = 8
    del config["policies"]["small"]["optimizer"]["lr"]
    other.config.write_text(yaml.safe_dump(config))
    return one, other


def test_keys_that_differ_and_evaluations_stand_side_by_side(runs):
    console = Console(file=io.StringIO(), width=80)
    found = compare_runs(*runs, console=console)
    assert found["config"]["trainer.seed"] == [7, 8]
    assert set(found["config"]) <= {"trainer.seed", "policies.small.optimizer.lr"}
    whole = found["evaluations"][0]
    assert (whole["metric"], whole["part"]) == ("avg@8", "")
    assert whole["a"]["after"] == {"mean": 0.5, "margin": 0.031}
    assert math.isclose(whole["b"]["gain"]["mean"], 0.6)
    assert math.isclose(whole["difference"]["mean"], 0.2)
    assert math.isclose(whole["difference"]["margin"], math.hypot(0.031, 0.031))
    assert [row["part"] for row in found["evaluations"][:3]] == ["", "add", "word"]
    said = console.file.getvalue()
    assert "trainer.seed" in said
    assert "0.700 +- 0.031" in said
    folders = tuple(str(run.path) for run in runs)  # as long as they are
    assert max(len(line) for line in said.splitlines() if not line.endswith(folders)) <= 80


def test_a_run_that_was_not_evaluated_has_gaps(tmp_path, runs):
    bare = make_run(tmp_path / "bare")
    found = compare_runs(runs[0], bare, console=Console(file=io.StringIO()))
    assert found["evaluations"][0]["b"] is None
    assert found["evaluations"][0]["difference"] is None
    console = Console(file=io.StringIO())
    assert compare_runs(bare, bare, console=console)["evaluations"] == []
    assert "Neither was evaluated" in console.file.getvalue()
    assert "configs are equal" in console.file.getvalue()


def test_the_command_writes_json(runs, tmp_path, capsys):
    assert command("compare", runs[0].path, runs[1].path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == {"A": str(runs[0].path), "B": str(runs[1].path)}
    assert command("compare", runs[0].path, tmp_path / "nowhere") == 2


def scored(path, *scores: float):
    """A run whose newest evaluation has these mean scores, of two attempts each."""
    episodes = []
    for number, score in enumerate(scores):
        for attempt in (0, 1):
            one = episode(f"t{number}", attempt, score=score)
            one.id = f"evaluation:t{number}:{attempt}"
            episodes.append(one)
    run = make_run(path, records=[step_record(1, score=0.2), evaluation_record(9, "after", 0.5)])
    write_parquet(path / "evaluation-000000.parquet", [], step=0)
    write_parquet(path / "evaluation-000009.parquet", episodes, step=9)
    return run


def test_the_same_tasks_are_compared_in_pairs(tmp_path):
    a = scored(tmp_path / "a", 1.0, 0.0, 0.5)
    b = scored(tmp_path / "b", 1.0, 0.5, 1.0, 0.0)  # the last task is not among a's
    console = Console(file=io.StringIO(), width=100)
    found = compare_runs(a, b, console=console)["same_tasks"]
    assert (found["num_tasks"], found["better"], found["worse"]) == (3, 2, 0)
    assert math.isclose(found["difference"]["mean"], 1 / 3)
    assert math.isclose(found["difference"]["margin"], 0.32666, abs_tol=1e-4)
    assert [pair["task"].split()[-1] for pair in found["most_better"]] == ["t1", "t2"]
    assert found["most_worse"] == []
    assert "B - A = 0.333 +- 0.327; 2 better, 0 worse" in " ".join(console.file.getvalue().split())


def test_a_task_without_a_finite_score_is_in_no_pair(tmp_path):
    a = scored(tmp_path / "a", 1.0, math.nan, 0.5)
    b = scored(tmp_path / "b", 0.0, 0.5, 0.5)
    found = compare_runs(a, b, console=Console(file=io.StringIO()))["same_tasks"]
    assert (found["num_tasks"], found["better"], found["worse"]) == (2, 0, 1)
    assert found["difference"]["mean"] == -0.5


def test_both_curves_are_one_picture(tmp_path, capsys):
    a, b = scored(tmp_path / "a", 1.0), scored(tmp_path / "b", 0.0)
    assert command("compare", a.path, b.path, "--png", tmp_path / "both.png") == 0
    with Image.open(tmp_path / "both.png") as picture:
        assert picture.width > 1000
        colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
        assert len(colours) > 20, "curves are drawn"
