"""Episodes that workers play are those that the trainer would play, and none is lost with them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.core.errors import ConfigError, RunEndingError
from rolecall.runs.api import train
from tests.cluster.killing import ENGINE, WORKER, Killer, all_gone
from tests.cluster.test_ray_runs import NO_TEST, ON_RAY, tokens
from tests.toy import relay_config

pytestmark = [pytest.mark.slow, pytest.mark.alone]
DEADLINE = Path(__file__).parents[1] / "training/test_deadline.py"
WITH_WORKERS = {**ON_RAY, "cluster": {**ON_RAY["cluster"], "workers": 2}}


def test_workers_play_the_episodes_that_the_trainer_would_play(model_folder, tmp_path):
    config = relay_config(model_folder, trainer={"steps": 1})
    train(config | ON_RAY, output=tmp_path / "trainer")
    train(config | WITH_WORKERS, output=tmp_path / "workers")
    assert all_gone(within_s=20.0) == []
    assert tokens(tmp_path / "trainer") == tokens(tmp_path / "workers")
    found = [json.loads((tmp_path / name / "summary.json").read_text())["before"]
             for name in ("trainer", "workers")]  # fmt: skip
    assert found[0] == found[1]
    assert list((tmp_path / "workers/journal").iterdir()) == []


PROGRAM = """
from openai import OpenAI
client = OpenAI()
def ask(agent, text):
    message = {"role": "user", "content": text}
    reply = client.chat.completions.create(model=agent, messages=[message])
    return reply.choices[0].message.content
def run(task):
    return ask("last", ask("left", task["prompt"]) + ask("right", task["prompt"]))
"""


def test_workers_play_programs_that_were_written_elsewhere(model_folder, tmp_path):
    """Each worker has a gateway of its own; what its programs are told is what they say without."""
    (tmp_path / "program.py").write_text(PROGRAM)
    workflow = {"name": "external", "function": f"{tmp_path}/program.py:run"}
    config = relay_config(model_folder, trainer={"steps": 1}, workflow=workflow, **NO_TEST)
    for name, cluster in (("trainer", ON_RAY), ("workers", WITH_WORKERS)):
        train(config | cluster, output=tmp_path / name)
        rows = pq.read_table(tmp_path / name / "episodes/step-000001.parquet").to_pylist()
        assert {row["error"] for row in rows} == {None}
        assert len(rows) == 3 * 4 * 3  # tasks, attempts, turns
    assert all_gone(within_s=20.0) == []
    assert tokens(tmp_path / "trainer") == tokens(tmp_path / "workers")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_episodes_of_a_lost_worker_are_played_again(how, model_folder, tmp_path):
    settings = {"trainer": {"steps": 4, "save_every": 2}, **NO_TEST}
    run = tmp_path / "run"
    with Killer(run, WORKER, {1}, how) as killer:
        summary = train(relay_config(model_folder, **settings) | WITH_WORKERS, output=run)
    assert len(killer.killed) == 1
    assert summary["steps"] == 4
    assert all_gone(within_s=20.0) == []
    without = tmp_path / "without"
    train(relay_config(model_folder, **settings) | WITH_WORKERS, output=without)
    assert tokens(run).keys() == tokens(without).keys()


def test_an_engine_that_is_lost_costs_workers_no_episode(model_folder, tmp_path):
    settings = {"trainer": {"steps": 4}, **NO_TEST}
    run = tmp_path / "run"
    with Killer(run, ENGINE, {1}, signal.SIGKILL) as killer:
        train(relay_config(model_folder, **settings) | WITH_WORKERS, output=run)
    assert len(killer.killed) == 1
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["rollout/failures"] for r in steps if r["kind"] == "step"] == [0.0] * 4
    assert all_gone(within_s=20.0) == []


def test_workers_that_are_lost_too_often_end_the_run(model_folder, tmp_path):
    cluster = {**WITH_WORKERS["cluster"], "workers": 1, "restarts": 0}
    config = relay_config(model_folder, trainer={"steps": 200}, **NO_TEST)
    run = tmp_path / "run"
    with (
        Killer(run, WORKER, {1}, signal.SIGKILL),
        pytest.raises(RunEndingError, match=r"^worker 0 on .* was lost and has been started 0"),
    ):
        train(config | WITH_WORKERS | {"cluster": cluster}, output=run)
    assert all_gone(within_s=20.0) == []


def test_what_a_worker_lacks_is_said_before_anything_is_played(model_folder, tmp_path):
    """Its process finds another environment than the trainer's, as on a machine without files."""
    code = tmp_path / "lacking.py"
    code.write_text(
        "import os\n"
        "from tests.toy import Letters\n"
        "class Lacking(Letters):\n"
        "    async def check(self):\n"
        f"        if os.getpid() != {os.getpid()}:\n"
        "            raise OSError('there is no data here')\n"
    )
    config = relay_config(model_folder, environment=f"{code}:Lacking", **NO_TEST)
    with pytest.raises(ConfigError, match="environment: there is no data here"):
        train(config | WITH_WORKERS, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert all_gone(within_s=20.0) == []


def test_stragglers_are_cut_in_workers_too(model_folder, tmp_path):
    """The file that two episodes wait for never comes; nothing fails, and all workers live on."""
    slow = {"name": f"{DEADLINE}:Slow", "size": 3, "released": str(tmp_path / "never")}
    rollout = {"groups": 3, "group_size": 4, "deadline_s": 4.0}
    config = relay_config(
        model_folder, environment=slow, rollout=rollout, trainer={"steps": 2}, **NO_TEST
    )
    run = tmp_path / "run"
    train(config | WITH_WORKERS, output=run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [r for r in map(json.loads, lines) if r["kind"] == "step"]
    assert [r["rollout/cut_episodes"] for r in found] == [2, 0]
    assert [r["rollout/failures"] for r in found] == [0, 0]
    assert [r["rollout/episodes"] for r in found] == [10, 12]
    assert all_gone(within_s=20.0) == []
