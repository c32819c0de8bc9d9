"""Replays that are started from the page."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.watch.jobs import SAY_CHARS, Jobs, Order, write_command
from rolecall.watch.refusals import Unanswerable
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
from tests.explain.test_blame import run as run  # a fixture
from tests.support.processes import is_alive
from tests.watch.browser import serving
from tests.watch.small_runs import write_run


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


@pytest.mark.parametrize(
    ("say", "says"),
    [("a\0b", "NUL"), ("x" * (SAY_CHARS + 1), "say: "), ("\ud800", "say: ")],
    ids=["NUL", "long", "half of a pair"],
)
def test_a_text_that_no_command_can_have_is_refused(tmp_path, say, says):
    jobs = Jobs()
    write_run(tmp_path / "mine", steps=1)
    client = TestClient(make_app(Watch(Runs([tmp_path]), jobs=jobs)))
    order = {"kind": "whatif", "run": "mine", "step": 1, "turn": "1:add:1/0", "say": say}
    headers = {"content-type": "application/json"}
    refused = client.post("/api/jobs", content=json.dumps(order), headers=headers)
    assert (refused.status_code, says in refused.json()["detail"]) == (400, True)


def test_the_longest_text_can_be_sent(tmp_path):
    """A character of the largest size, and as many as may be said."""
    say = "\N{GRINNING FACE}" * SAY_CHARS
    words = write_command(Order(kind="whatif", run="x", step=1, turn="y", say=say), tmp_path)
    assert subprocess.run(["true", *words], check=False).returncode == 0


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
    assert spikes["job"] == job["job"]
    os.utime(RunFolder(run).episode_file(2))  # as a run that went back and did the step again
    again = client.get("/api/spikes", params=order).json()
    assert again["job"] == ""
    assert all(token["measured"] is None for token in again["tokens"])


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


def processes_of(run: Path) -> list[int]:
    """Ids of the processes that replay an episode of a run."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"blame" in words and os.fsencode(run) in words:
            pids.append(int(file.parent.name))
    return pids


@pytest.mark.slow
def test_what_was_started_leaves_a_training_room_and_ends_with_the_server(run):
    with serving(run.parent, "--what-if") as address:
        episode = read_parquet(RunFolder(run).episode_file(2))[0].id
        order = {"kind": "blame", "run": "run", "step": 2, "episode": episode, "draws": 1024}
        request = urllib.request.Request(
            f"{address}/api/jobs",
            data=json.dumps(order).encode(),
            headers={"content-type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        [process] = processes_of(run)
        assert is_alive(process)
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=" in variables
        assert b"OMP_NUM_THREADS=%d" % max(1, (os.cpu_count() or 1) // 2) in variables
        assert os.getpriority(os.PRIO_PROCESS, process) >= 10
    assert not is_alive(process)
