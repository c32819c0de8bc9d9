"""A finished run that is made longer is unfinished until its last team is tested."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rolecall.training import trainer
from tests.toy import command, solo_config, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("extended")
    config = solo_config(
        model_folder,
        trainer={"steps": 1},
        evaluation={"tasks": 2, "samples": 2, "k": 1, "every": 0},
    )
    assert command("train", write(place / "c.yaml", config), "--output", place / "run") == 0
    return place / "run"


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.evidence
def test_a_run_that_is_stopped_in_its_last_evaluation_is_not_finished(run, monkeypatch, capsys):
    whole = trainer.evaluate_run

    async def stopped(of, tasks, *, step, **options):
        if step == 2:
            raise OSError("the power went")
        return await whole(of, tasks, step=step, **options)

    monkeypatch.setattr(trainer, "evaluate_run", stopped)
    assert command("train", run, "trainer.steps=2") == 1
    assert not (run / "summary.json").exists(), "that of one step"
    monkeypatch.setattr(trainer, "evaluate_run", whole)
    capsys.readouterr()
    assert command("train", run) == 0
    assert "is finished" not in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tested = [(r["when"], r["step"]) for r in records if r["kind"] == "evaluation"]
    assert tested == [("before", 0), ("after", 1), ("after", 2)]
    assert command("train", run) == 0
    assert "is finished: 2 steps" in capsys.readouterr().out


@pytest.mark.evidence
def test_a_summary_that_an_earlier_version_left_does_not_end_a_longer_run(run, monkeypatch):
    left = (run / "summary.json").read_text()
    assert command("train", run, "trainer.steps=2") == 0
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))  # without the last evaluation
    (run / "summary.json").write_text(left)
    assert command("train", run) == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(lines)


def test_a_start_that_is_killed_before_the_config_is_written_says_its_changes_once(
    run, monkeypatch
):
    from rolecall.storage import run_folder

    whole = run_folder.write_atomically

    def stopped(path, text):
        if path.name == "config.yaml":
            raise OSError("the power went")
        whole(path, text)

    monkeypatch.setattr(run_folder, "write_atomically", stopped)
    assert command("train", run, "trainer.steps=2") == 1
    monkeypatch.setattr(run_folder, "write_atomically", whole)
    assert command("train", run, "trainer.steps=2") == 0
    [line] = (run / "chapters.jsonl").read_text().splitlines()
    assert json.loads(line) == {"after_step": 1, "changes": {"trainer.steps": [1, 2]}}
