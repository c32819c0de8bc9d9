"""A run folder that an earlier version has written is read, played and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.toy import command

# Two steps on a model with random weights, written in November 2026 before modules were renamed.
OLD = Path(__file__).with_name("run_of_0_1")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")  # its config names the base by a relative path
    return Path("run")


def test_an_old_run_is_shown_and_compared(run, capsys):
    assert command("show", run) == 0
    assert "solver" in capsys.readouterr().out
    assert command("compare", run, run, "--json") == 0
    assert json.loads(capsys.readouterr().out)


def test_the_team_of_an_old_run_is_evaluated(run, capsys):
    assert command("eval", run, "evaluation.tasks=1", "evaluation.samples=1") == 0
    assert "avg@1" in capsys.readouterr().out


def test_an_old_run_goes_on_and_reports(run):
    """Its random weights earn nothing, which is what status 1 says."""
    assert command("train", run, "trainer.steps=3") == 1
    last = (run / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 3
    assert (run / "checkpoints/latest").read_text().strip() == "step-3"
    assert "solver" in (run / "report.html").read_text()
