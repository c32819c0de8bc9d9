"""A cluster of several nodes: weights are copied to each, and a node that goes costs no request."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rolecall.algorithms.drmas import DrMas
from rolecall.cluster import session as sessions
from rolecall.cluster.copying import fetch_folder
from rolecall.cluster.ranks import RankActors
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
from rolecall.core.errors import ConfigError
from rolecall.engines.backend import engine_backend
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.runtime.scratch import shared_folder
from rolecall.setup.on_cluster import make_replicas
from rolecall.training.publish import WeightPublisher
from tests.cluster.test_ray import SECTION, assert_sampled, config_of, probe_of, request, until
from tests.learners.test_ranks import batches_of, spec_of
from tests.toy import language_model

pytestmark = [pytest.mark.slow, pytest.mark.alone]
STORE = 80 * 2**20  # bytes, about the least that Ray takes


@pytest.fixture
def session(cluster):
    made = RaySession(RayClusterConfig(**{**SECTION, "address": cluster.address}))
    yield made
    made.close()


def test_weights_reach_every_node_and_a_node_that_goes_costs_no_request(
    cluster, session, model_folder, tmp_path, caplog
):
    model = language_model(model_folder)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.write_weights(tmp_path / "new")
    requests = [request(n, task=f"t{n}", max_tokens=60) for n in range(8)]
    with asyncio.Runner() as loop:
        engine = make_replicas(session, engine_backend(config_of(model_folder), ["a", "b"]))
        loop.run(engine.start())
        assert len({member.place.node for member in engine.members}) == 2
        loop.run(engine.load_files("a", 1, tmp_path / "new"))
        loop.run(engine.prove(probe_of(model)))
        assert_sampled(model, engine, loop)
        wanted = [loop.run(engine.generate(each))[0].tokens.tolist() for each in requests]

        async def meanwhile():
            asked = [asyncio.create_task(engine.generate(each)) for each in requests]
            await asyncio.sleep(0.05)
            await asyncio.to_thread(cluster.remove_node, cluster.second, allow_graceful=False)
            found = [done[0].tokens.tolist() for done in await asyncio.gather(*asked)]
            members = engine.members
            while not any(m.restarts for m in members) or not all(m.serves for m in members):
                await asyncio.sleep(0.05)
            return found

        assert loop.run(asyncio.wait_for(meanwhile(), 120)) == wanted
        assert {member.place.node for member in engine.members} == {session.here}
        assert_sampled(model, engine, loop)
        loop.run(engine.close())
    assert any("was lost and is started again" in r.getMessage() for r in caplog.records)


def noted_copies(monkeypatch) -> list[tuple[str, str]]:
    """From which node to which one: all see one disk here."""
    run_on, found = RaySession.run_on, []

    def noted(self, node, function, *arguments):
        if function is fetch_folder:
            source = arguments[1]
            found.append((source, node))
        return run_on(self, node, function, *arguments)

    monkeypatch.setattr(RaySession, "run_on", noted)
    return found


def test_weights_of_a_rank_on_another_node_come_to_the_trainers(
    session, model_folder, tmp_path, monkeypatch
):
    options, copies = RaySession.actor_options, noted_copies(monkeypatch)
    monkeypatch.setattr(
        RaySession,
        "actor_options",
        lambda *a, **more: options(*a, **more | {"avoided": session.here}),
    )
    hosts = RankActors(session, "rank", [None])
    group = RankGroup(1, hosts=hosts)
    learner = RankedLearner(group, "a", spec_of(model_folder, "replicated"))
    (tmp_path / "new").mkdir()
    asyncio.run(learner.write_weights(tmp_path / "new"))
    [place] = hosts.places
    assert copies == [(place.node, session.here)]
    assert place.node != session.here
    found = load_file(tmp_path / "new/model.safetensors")
    wanted = language_model(model_folder).weights()
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    asyncio.run(learner.close())


@pytest.mark.parametrize("kind", ["replicated", "fsdp"])
def test_weights_go_from_the_ranks_machine_to_the_engines_and_not_over_the_trainers(
    kind, session, model_folder, monkeypatch
):
    """Ranks and engines are on both machines; rank 0 is on the other one."""
    options = RaySession.actor_options
    nodes = sorted(node["NodeID"] for node in session.nodes())
    others_first = 1 + nodes.index(session.here)
    monkeypatch.setattr(
        RaySession, "actor_options", lambda self, n, **more: options(self, n + others_first, **more)
    )
    hosts = RankActors(session, "rank", [None, None])
    group = RankGroup(2, hosts=hosts)
    assert [place.node == session.here for place in hosts.places] == [False, True]
    learner = RankedLearner(group, "a", spec_of(model_folder, kind))
    copies = noted_copies(monkeypatch)

    async def go() -> None:
        engine = make_replicas(session, engine_backend(config_of(model_folder), ["a"]))
        await engine.start()
        [number_here] = [m.number for m in engine.members if m.place.node == session.here]
        publisher = WeightPublisher(
            {"a": engine}, {}, {"a": learner}, {}, vocabulary={"a": 200}, apart={"a"}
        )
        for version in (1, 2, 3):
            await learner.update([batches_of([20])], DrMas(), per_agent=False)
            assert learner.version == version
            await publisher.publish("a", version)
            await publisher.check("a")
            assert {folder.name for folder in session.scratch.iterdir() if folder.is_dir()} == {
                "a", f"a.{number_here}",  # at the ranks, and at the engine that is elsewhere
            }  # fmt: skip
        [completion] = await engine.generate(request(0))
        assert set(completion.versions.tolist()) == {3}
        await engine.close()

    asyncio.run(asyncio.wait_for(go(), 200))
    assert copies == [(hosts.places[0].node, session.here)] * 3  # for the engine that is here
    asyncio.run(learner.close())


def test_a_stopped_actor_ends_with_its_machine(cluster, session, model_folder):
    """Nobody can tell it to."""

    async def go() -> None:
        engine = make_replicas(session, engine_backend(config_of(model_folder), ["a"]))
        await engine.start()
        [pid] = [m.place.pid for m in engine.members if m.place.node != session.here]
        os.kill(pid, signal.SIGSTOP)
        await asyncio.to_thread(cluster.remove_node, cluster.second, allow_graceful=False)
        until(lambda: not Path(f"/proc/{pid}").exists(), within_s=5.0)
        await engine.close()

    asyncio.run(asyncio.wait_for(go(), 100))


def test_a_machine_that_goes_before_its_weights_are_fetched_is_a_lost_rank(
    cluster, session, tmp_path, monkeypatch
):
    options = RaySession.actor_options
    monkeypatch.setattr(
        RaySession,
        "actor_options",
        lambda *a, **more: options(*a, **more | {"avoided": session.here}),
    )
    group = RankGroup(1, hosts=RankActors(session, "rank", [None]))
    cluster.remove_node(cluster.second, allow_graceful=False)
    with pytest.raises(RankError, match=r"what learner rank 0 of 1 wrote could not be fetched: "):
        group.fetch(tmp_path / "new")
    group.close()


def test_a_node_with_other_versions_is_named(cluster, monkeypatch):
    mine = sessions._versions()
    monkeypatch.setattr(sessions, "_versions", lambda: mine | {"torch": "2.0.0"})
    section = RayClusterConfig(**{**SECTION, "address": cluster.address})
    theirs = RaySession.run_on

    def asked(self, node, function, *arguments):
        return theirs(self, node, (lambda: mine) if function is sessions._versions else function,
                      *arguments)  # fmt: skip

    monkeypatch.setattr(RaySession, "run_on", asked)
    with pytest.raises(ConfigError, match=r"^cluster: node .* has torch .* has 2\.0\.0"):
        RaySession(section)


def test_weights_reach_another_machine_past_rays_object_stores(tmp_path):
    from ray._private.internal_api import memory_summary
    from ray.cluster_utils import Cluster

    sizes = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=sizes)
    cluster.add_node(**sizes)
    cluster.wait_for_nodes()
    session = RaySession(RayClusterConfig(**{**SECTION, "address": cluster.address}))
    try:
        weights = tmp_path / "weights"
        weights.mkdir()
        for number in (1, 2):
            np.full(STORE + number, number, dtype=np.uint8).tofile(weights / f"{number}.bin")
        (weights / "empty").touch()
        [other] = {node["NodeID"] for node in session.nodes()} - {session.here}
        place = partial(shared_folder, session.scratch.name, "copied", room=0)
        for source, target in ((session.here, other), (other, session.here)):
            to = session.ray.get(
                session.run_on(target, fetch_folder, weights, source, lambda size: place())
            )
            (to / "old").touch()
            for number in (1, 2):
                found = np.fromfile(to / f"{number}.bin", dtype=np.uint8)
                assert len(found) == STORE + number
                assert (found == number).all()
            assert {file.name for file in to.iterdir()} == {"1.bin", "2.bin", "empty", "old"}
        told = memory_summary(stats_only=True)
        assert "Plasma memory usage 0 MiB" in told
        assert "Spilled" not in told
        with pytest.raises(session.ray.exceptions.RayError, match="FileNotFoundError"):
            session.ray.get(
                session.run_on(other, fetch_folder, tmp_path / "no", session.here, place)
            )
    finally:
        session.close()
        cluster.shutdown()
