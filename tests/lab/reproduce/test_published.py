"""Settings of the published size train tiny random models that have the names of the real ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from rolecall.data.finding import collect_files
from rolecall.data.known import DATA_SETS
from rolecall.runs.prepare_data import prepare
from tests import toy
from tests.conftest import SHARED
from tests.hub import make_home
from tests.lab.reproduce.test_drmas import every
from tests.retrieval import foreign
from tests.support.evidence import leave_to_evidence
from tests.toy import command

pytestmark = pytest.mark.slow

REAL = {  # what the settings name, and the real rows beside the project
    "dapo-filter": "drmas_math_300.parquet",
    "amc": "amc_34.json",
}


@pytest.fixture
def at_home(hub_bases, tmp_path, monkeypatch):
    """A folder with all that the settings name; real rows where they are at hand."""
    make_home(tmp_path, hub_bases, monkeypatch)
    if SHARED.is_dir():
        for name, file in REAL.items():
            files = collect_files(DATA_SETS[name], [str(SHARED / "data" / file)])
            prepare(DATA_SETS[name], files, tmp_path / "data" / name)
    with foreign.serving(foreign.echo) as searched:
        yield tmp_path, searched.url


def narrowed(config: dict[str, Any], search_url: str) -> dict[str, Any]:
    """One step of few short turns on this machine. Models, data and algorithm stay."""
    team = {name: {**of, "sampling": {"max_tokens": 6}} for name, of in config["team"].items()}
    policies = {
        name: {key: value for key, value in of.items() if key != "colocate"}
        for name, of in config["policies"].items()
    }
    environment = dict(config["environment"])
    if "url" in environment:
        environment["url"] = search_url
    workflow = dict(config["workflow"]) if isinstance(config["workflow"], dict) else {}
    if workflow.get("name") == "search_team":  # random words give no verdict
        workflow |= {"on_unparsable": "no", "last_step": "answer"}
    return {
        **{key: value for key, value in config.items() if key != "cluster"},
        "workflow": workflow or config["workflow"],
        "team": team,
        "policies": policies,
        "environment": environment,
        "rewards": {f"{toy.__file__}:wordy": 1.0},  # which random weights can earn
        "rollout": {"groups": 2, "group_size": 2},
        "trainer": {"steps": 1},
        "evaluation": {**config["evaluation"], "tasks": 1, "samples": 1, "k": 1},
        "engine": {"cache_gb": 0.1},
        "learner": {"dtype": "bfloat16"},
    }


SETTINGS = every("published")
# The others differ from this by a base, by the data or by one option.
KINDS = ["search-qwen2.5-7b-own-drmas-mixed"]


@pytest.mark.parametrize("name", leave_to_evidence(sorted(SETTINGS), keep=KINDS))
def test_a_published_setting_trains_and_is_evaluated(name, at_home):
    """Data, turns, scores and an update of every policy, in the setting's own words."""
    folder, search_url = at_home
    config = narrowed(SETTINGS[name].config, search_url)
    (folder / "small.yaml").write_text(yaml.safe_dump(config))
    run = folder / "run"
    assert command("train", folder / "small.yaml", "evaluation.tasks=0", "--output", run) == 0
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    [step] = [record for record in records if record["kind"] == "step"]
    assert all(math.isfinite(value) for value in step.values() if isinstance(value, float))
    for agent in config["team"]:
        assert step[f"agent/{agent}/grad_norm"] >= 0
    for policy in config["policies"]:
        [file] = (run / "checkpoints/step-1" / policy).glob("*.safetensors")
        assert all(bool(torch.isfinite(found).all()) for found in load_file(file).values())
    assert command("eval", run, "evaluation.tasks=1") == 0
    found = json.loads((run / "evaluated/evaluation-000001.json").read_text())
    assert len(found["by_source"]) == len(config["environment"]["test"])


def test_the_check_counts_real_rows(at_home, shared, capsys):
    """Two passes over 300 rows in steps of 32."""
    asked = ["reproduce", "drmas", "--size", "published", "--figure", "1", "--check"]
    assert command(*asked, "--gpus", 8, "--memory", 80) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    [row] = [row for row in rows if "math-qwen3-4b-own-drmas" in row]
    assert str(2 * (300 // 32)) in row
    file = Path("reproduced/drmas-published/configs/math-qwen3-4b-own-drmas.yaml")
    assert yaml.safe_load(file.read_text())["trainer"] == {"epochs": 2}


def test_the_check_refuses_what_does_not_fit_before_rows_are_looked_for(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    asked = ["reproduce", "drmas", "--size", "published", "--figure", "1", "--check"]
    assert command(*asked, "--gpus", 8, "--memory", 24) == 2
    assert "and has 24.0; `rolecall plan` says what would fit" in capsys.readouterr().err
    assert command(*asked, "--gpus", 8, "--memory", 80) == 2
    assert "`rolecall data dapo-filter` makes it (in math-qwen3-4b-own-grpo and 1 more)" in (
        capsys.readouterr().err
    )
