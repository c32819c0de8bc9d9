"""Replays that are started from the page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.watch.jobs import Jobs, Order, write_command
from rolecall.watch.refusals import Unanswerable
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
from tests.explain.test_blame import run as run  # a fixture


def test_what_a_client_writes_is_never_an_option():
    order = Order(kind="whatif", run="mine", step=3, turn="--call-tools", say="--checkpoint=first")
    words = write_command(order, Path("/runs/mine"))
    assert words == [
        "whatif", "/runs/mine", "--step=3", "--draws=16", "--turn=--call-tools",
        "--say=--checkpoint=first",
    ]  # fmt: skip
    with pytest.raises(Unanswerable, match="name a turn"):
        write_command(Order(kind="whatif", run="mine", step=3), Path("/runs/mine"))
    with pytest.raises(ValueError, match="checkpoint"):
        Order(kind="whatif", run="mine", step=3, turn="x", checkpoint="../secret")


@pytest.fixture
def client(run):
    jobs = Jobs()
    yield TestClient(make_app(Watch(Runs([run.parent]), jobs=jobs)))
    jobs.close()


def wait_for(client: TestClient, job: str) -> dict:
    for _ in range(600):
        answer = client.get("/api/jobs", params={"job": job}).json()
        if answer["status"] != "running":
            return answer
        time.sleep(0.1)
    raise AssertionError("the job does not end")


@pytest.mark.slow
def test_a_turn_is_changed_and_its_tokens_are_measured(client, run):
    turn = read_parquet(RunFolder(run).episode_file(2))[0].turns[0].id
    order = {"run": "run", "step": 2}
    change = order | {"kind": "whatif", "turn": turn, "say": "else", "draws": 2}
    job = client.post("/api/jobs", json=change).json()
    assert job["status"] == "running"
    busy = client.post("/api/jobs", json=order | {"kind": "spikes"})
    assert busy.status_code == 409
    ended = wait_for(client, job["job"])
    assert ended["status"] == "done", ended["error"]
    assert ended["result"]["change"] == "else"
    job = client.post("/api/jobs", json=order | {"kind": "spikes"}).json()
    ended = wait_for(client, job["job"])
    assert ended["status"] == "done", ended["error"]
    spikes = client.get("/api/spikes", params=order).json()
    measured = [token["measured"] for token in spikes["tokens"]]
    assert all(value is not None and value >= 0 for value in measured[:20])
    assert all(value is None for value in measured[20:])


@pytest.mark.slow
def test_a_job_that_fails_says_why_and_one_can_be_stopped(client):
    order = {"kind": "blame", "run": "run", "step": 2, "episode": "none"}
    ended = wait_for(client, client.post("/api/jobs", json=order).json()["job"])
    assert ended["status"] == "failed"
    assert "has no turn or episode 'none'" in ended["error"]
    job = client.post("/api/jobs", json=order).json()["job"]
    stopped = client.post("/api/cancel", params={"job": job}, json={}).json()
    assert stopped["status"] == "cancelled"
    assert client.get("/api/jobs", params={"job": "9"}).status_code == 404
