"""A cluster of several nodes: weights are copied to each, and a node that goes costs no request."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rolecall.cluster import session as sessions
from rolecall.cluster.ranks import RankActors
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
from rolecall.config.errors import ConfigError
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.setup.replicas import replicated
from tests.cluster.test_ray import SECTION, assert_sampled, config_of, probe_of, request
from tests.learners.test_ranks import spec_of
from tests.toy import language_model

pytestmark = pytest.mark.slow
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
        engine = replicated(session, config_of(model_folder), ["a", "b"])
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


def test_weights_of_a_rank_on_another_node_come_to_the_trainers(
    session, model_folder, tmp_path, monkeypatch
):
    """Both nodes see one disk here, so that they are copied is asked of Ray."""
    options, copied, asked = RaySession.options_of, RaySession.copied, []
    monkeypatch.setattr(
        RaySession, "options_of", lambda *a, **more: options(*a, **more, avoided=session.here)
    )

    def noted(self, folder, *, source, target, to):
        asked.append((source, target, to))
        return copied(self, folder, source=source, target=target, to=to)

    monkeypatch.setattr(RaySession, "copied", noted)
    hosts = RankActors(session, "rank", [None])
    group = RankGroup(1, hosts=hosts)
    learner = RankedLearner(group, "a", spec_of(model_folder, "replicated"))
    asyncio.run(learner.write_weights(tmp_path / "new"))
    [place] = hosts.places
    assert asked == [(place.node, session.here, tmp_path / "new")]
    assert place.node != session.here
    found = load_file(tmp_path / "new/model.safetensors")
    wanted = language_model(model_folder).weights()
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    asyncio.run(learner.close())


def test_a_machine_that_goes_before_its_weights_are_fetched_is_a_lost_rank(
    cluster, session, tmp_path, monkeypatch
):
    options = RaySession.options_of
    monkeypatch.setattr(
        RaySession, "options_of", lambda *a, **more: options(*a, **more, avoided=session.here)
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


def test_weights_that_are_larger_than_the_object_store_reach_another_machine(tmp_path):
    """Ray goes over the disk with them."""
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
            np.full(STORE, number, dtype=np.uint8).tofile(weights / f"{number}.safetensors")
        [other] = {node["NodeID"] for node in session.nodes()} - {session.here}
        to = tmp_path / "copied"
        session.ray.get(session.copied(weights, source=session.here, target=other, to=to))
        for number in (1, 2):
            found = np.fromfile(to / f"{number}.safetensors", dtype=np.uint8)
            assert len(found) == STORE
            assert (found == number).all()
    finally:
        session.close()
        cluster.shutdown()
