"""Whole runs on Ray: they learn what a run in one process learns, also when ranks are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from rolecall.learners.ranks.group import RankError
from rolecall.runs.api import train
from tests.cluster.killing import ENGINE, RANK, Killer, actors, all_gone
from tests.toy import alike, relay_config, write

pytestmark = [pytest.mark.slow, pytest.mark.alone]
ON_RAY = {
    "cluster": {"name": "ray", "address": "local", "heartbeat_s": 2.0},
    "engine": {"name": "local", "replicas": 2, "cache_gb": 0.05},
    "learner": {"name": "replicated", "ranks": 2, "device": "cpu"},
}
NO_TEST = {"evaluation": {"tasks": 0}}


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return {
        f"{policy}.{name}": tensor
        for policy in ("a", "b")
        for name, tensor in load_file(
            run / f"checkpoints/step-{step}" / policy / "model.safetensors"
        ).items()
    }


def tokens(run: Path) -> dict[str, list[int]]:
    rows = [
        row
        for file in sorted((run / "episodes").iterdir())
        for row in pq.read_table(file).to_pylist()
    ]
    assert len({row["turn"] for row in rows}) == len(rows)
    return {row["turn"]: row["token_ids"] for row in rows}


@pytest.mark.parametrize(("learner", "transfer"), [("replicated", "files"), ("fsdp", "direct")])
def test_ray_equals_local(learner, transfer, model_folder, tmp_path, caplog):
    """The same episodes, and weights but for the order in which ranks add up."""
    optimizer = {"lr": 1e-3, "eps": 1e-4}  # so that steps depend smoothly on gradients
    policies = {name: {"base": str(model_folder), "optimizer": optimizer} for name in ("a", "b")}
    config = relay_config(model_folder, policies=policies, trainer={"steps": 2}, **NO_TEST)
    train(config, output=tmp_path / "here")
    on_ray = {
        **ON_RAY,
        "engine": {**ON_RAY["engine"], "transfer": transfer},
        "learner": {**ON_RAY["learner"], "name": learner},
    }
    train(config | on_ray, output=tmp_path / "ray")
    assert all_gone(within_s=20.0) == []
    assert not [r for r in caplog.records if "come in files" in r.getMessage()]
    here, there = tmp_path / "here", tmp_path / "ray"
    assert tokens(here) == tokens(there)
    wanted, found = weights(here, 2), weights(there, 2)
    flat = [torch.cat([w[name].flatten() for name in sorted(w)]) for w in (found, wanted)]
    assert alike(*flat)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", [RANK, ENGINE])
def test_a_run_goes_on_when_an_actor_is_lost(kind, how, model_folder, tmp_path):
    """No episode is lost or counted twice; the run does all its steps, and no process stays."""
    settings = {"trainer": {"steps": 4, "save_every": 2}, **NO_TEST}
    config = relay_config(model_folder, **settings) | ON_RAY
    run = tmp_path / "run"
    with Killer(run, kind, {1}, how) as killer:
        summary = train(config, output=run)
    assert len(killer.killed) == 1
    assert summary["steps"] == 4
    assert len(tokens(run)) >= 4 * 3 * 4
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in steps if r["kind"] == "step"] == [1, 2, 3, 4]
    assert all_gone(within_s=20.0) == []


def test_ranks_that_are_lost_too_often_end_the_run_with_the_cause(model_folder, tmp_path):
    on_ray = {**ON_RAY, "cluster": {**ON_RAY["cluster"], "restarts": 0}}
    config = relay_config(model_folder, trainer={"steps": 50}, **NO_TEST) | on_ray
    run = tmp_path / "run"
    with (
        Killer(run, RANK, {1}, signal.SIGKILL),
        pytest.raises(RankError, match=r"learner rank \d of 2 ended"),
    ):
        train(config, output=run)
    assert all_gone(within_s=20.0) == []


def test_a_driver_that_is_killed_leaves_nothing_and_its_run_goes_on(model_folder, tmp_path):
    config = relay_config(model_folder, trainer={"steps": 40, "save_every": 1}, **NO_TEST) | ON_RAY
    file, run = write(tmp_path / "team.yaml", config), tmp_path / "run"
    command = [sys.executable, "-m", "rolecall", "train", file, "--output", run]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as driver:
        until = time.monotonic() + 120
        metrics = run / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count('"kind": "step"') < 2:
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        driver.kill()
    until = time.monotonic() + 20
    while actors(RANK) or actors(ENGINE):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert all_gone(within_s=180) == [], "Ray's own agents look for it for more than a minute"
    done = metrics.read_text().count('"kind": "step"')
    summary = train(run, [f"trainer.steps={done + 1}"], allow_changes=True)
    assert summary["steps"] == done + 1
    tokens(run)
    assert not list(Path("/dev/shm").glob(f"rolecall-{driver.pid}-*"))
