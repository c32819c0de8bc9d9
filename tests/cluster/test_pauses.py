"""Machines and the trainer that stand still for a while: short pauses cost nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecall.cluster.ranks import RankActors
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
from rolecall.engines.backend import engine_backend
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.setup.on_cluster import make_replicas
from tests.cluster.killing import all_gone, records
from tests.cluster.test_ray import SECTION, TOKENS, config_of, request, said_by_each
from tests.cluster.test_ray_runs import ON_RAY
from tests.learners.test_ranks import spec_of
from tests.toy import relay_config, write

pytestmark = [pytest.mark.slow, pytest.mark.alone]
HEARTBEAT_S = 4.0


@pytest.fixture
def session(cluster):
    section = {**SECTION, "address": cluster.address, "heartbeat_s": HEARTBEAT_S}
    made = RaySession(RayClusterConfig(**section))
    yield made
    made.close()


def family_of(pid: int) -> list[int]:
    """A process, its children, and theirs."""
    found = [pid]
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            found += family_of(int(child))
    return found


class Stopped:
    """Inside, all processes of a node stand still, as on a machine that hangs."""

    def __init__(self, node) -> None:
        [raylet] = node.all_processes["raylet"]
        self.pids = family_of(raylet.process.pid)

    def _send(self, number: signal.Signals) -> None:
        for pid in self.pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, number)

    def __enter__(self) -> Stopped:
        self._send(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._send(signal.SIGCONT)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_gone(pid: int, *, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while is_there(pid):
            await asyncio.sleep(0.1)


def test_a_short_pause_of_a_machine_costs_nothing_and_a_long_one_its_actors(
    cluster,
    session,
    model_folder,
):
    requests = [request(n, task=f"t{n}", max_tokens=60) for n in range(8)]

    async def played(engine, node, pause_s: float):
        """The answers to requests that were asked when the node stopped."""
        asked = [asyncio.create_task(engine.generate(each)) for each in requests]
        await asyncio.sleep(0.05)
        with Stopped(node):
            await asyncio.sleep(pause_s)
        return [done[0].tokens.tolist() for done in await asyncio.gather(*asked)]

    async def go() -> None:
        engine = make_replicas(session, engine_backend(config_of(model_folder), ["a", "b"]))
        await engine.start()
        wanted = [(await engine.generate(each))[0].tokens.tolist() for each in requests]
        [there] = [m for m in engine.members if m.place.node != session.here]
        first = there.place.pid
        assert await played(engine, cluster.second, HEARTBEAT_S / 4) == wanted
        assert [member.restarts for member in engine.members] == [0, 0]
        assert await played(engine, cluster.second, 2.5 * HEARTBEAT_S) == wanted
        while there.restarts != 1 or not there.serves:
            await asyncio.sleep(0.05)
        assert there.place.pid != first
        await until_gone(first, within_s=60)
        assert len(await said_by_each(engine)) == 2
        await engine.close()

    asyncio.run(asyncio.wait_for(go(), 200))


def test_ranks_of_a_machine_that_hangs_are_ended_and_do_not_come_back(
    cluster,
    session,
    model_folder,
):
    hosts = RankActors(session, "rank", [None, None])
    group = RankGroup(2, hosts=hosts, heartbeat_s=HEARTBEAT_S)
    learner = RankedLearner(group, "a", spec_of(model_folder, "replicated"))
    pids = [place.pid for place in hosts.places]
    [rank] = [n for n, place in enumerate(hosts.places) if place.node != session.here]
    with Stopped(cluster.second):
        time.sleep(HEARTBEAT_S / 4)
    asyncio.run(learner.probe(TOKENS))
    with (
        Stopped(cluster.second),
        pytest.raises(RankError, match=rf"rank {rank} of 2 said nothing for 4 s .*heartbeat_s"),
    ):
        asyncio.run(learner.probe(TOKENS))
    for pid in pids:
        asyncio.run(until_gone(pid, within_s=60))
    asyncio.run(learner.close())


def test_a_trainer_that_stands_still_goes_on_without_a_loss(model_folder, tmp_path):
    settings = {"trainer": {"steps": 8, "save_every": 2}, "evaluation": {"tasks": 0}}
    config = relay_config(model_folder, **settings) | ON_RAY
    file, run = write(tmp_path / "team.yaml", config), tmp_path / "run"
    command = [sys.executable, "-m", "rolecall", "train", file, "--output", run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        while not (run / "metrics.jsonl").exists():
            assert driver.poll() is None
            time.sleep(0.05)
        driver.send_signal(signal.SIGSTOP)
        time.sleep(15)
        driver.send_signal(signal.SIGCONT)
        told, _ = driver.communicate(timeout=200)
    assert driver.returncode == 0, told
    assert records(run) == list(range(1, 9))
    assert "started again" not in told
    assert all_gone(within_s=20.0) == []
