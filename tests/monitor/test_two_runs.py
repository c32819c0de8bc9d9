"""Two runs side by side, on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import math

import pytest
import yaml
from rich.console import Console

from rolecall.monitor.two_runs import compare_runs
from tests.monitor.runs_for_tests import evaluation_record, make_run
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
