"""GPUs of a cluster, which are pretended: Ray gives them away, and actors compute beside them."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import pytest

from rolecall.cluster.pool import NoRoomError, Pool, Seat
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.runs.api import train
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.cluster.test_ray_runs import NO_TEST, ON_RAY, tokens
from tests.toy import relay_config

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture
def cluster():
    """Two machines with two GPUs each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 2})
    made.second = made.add_node(num_cpus=2, num_gpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def config_of(folder: Path, cluster, pools: dict[str, int], *, colocate: bool) -> dict:
    section = {
        "name": "ray", "address": cluster.address, "heartbeat_s": 2.0, "start_timeout_s": 60.0,
        "pools": {name: {"gpus": gpus} for name, gpus in pools.items()},
    }  # fmt: skip
    on_ray = copy.deepcopy(ON_RAY) | {"cluster": section}  # tests change what is in it
    config = relay_config(folder, trainer={"steps": 1}, **NO_TEST) | on_ray
    for policy in config["policies"].values():
        policy["colocate"] = colocate
    return config


def seen(run) -> dict[str, list[tuple[str, str]]]:
    """The machine and the GPUs of each actor, by what it does."""
    engines = {
        f"engine {number} of {policy}": [(member.place.node, member.place.gpus)]
        for policy, agent in zip("ab", ("left", "last"), strict=True)
        for number, member in enumerate(run.context.agents[agent].policy.engine.members)
    }
    ranks = {
        f"ranks of {name}": [(p.node, p.gpus) for p in learner.group._hosts.places]
        for name, learner in run.learners.items()
    }
    return engines | ranks


def test_policies_that_are_colocated_share_gpus_and_update_in_turn(cluster, model_folder):
    config = config_of(model_folder, cluster, {"main": 2}, colocate=True)
    run = build(validate(Config.model_validate(config)))
    asyncio.run(run.engine.check())
    found = seen(run)
    places = [place for there in found.values() for place in there]
    assert len(found["ranks of a"]) == 2
    assert found["ranks of a"] == found["ranks of b"]
    assert len(places) == 8
    assert {gpus for _, gpus in set(places)} == {"0", "1"}
    assert len(set(places)) == 2
    assert run.learners["a"].place is run.learners["b"].place
    asyncio.run(run.close())


def test_a_run_in_a_pool_samples_what_a_run_in_one_process_samples(cluster, model_folder, tmp_path):
    train(relay_config(model_folder, trainer={"steps": 1}, **NO_TEST), output=tmp_path / "here")
    config = config_of(model_folder, cluster, {"main": 4}, colocate=False)
    config["engine"]["replicas"] = config["learner"]["ranks"] = 1
    del config["policies"]["b"]["colocate"]
    config["cluster"]["pools"] = {"x": {"gpus": 2}, "y": {"gpus": 2}}
    for policy, pool in (("a", "x"), ("b", "y")):
        config["policies"][policy]["pool"] = pool
    train(config, output=tmp_path / "pools")
    assert tokens(tmp_path / "here") == tokens(tmp_path / "pools")


def test_a_pool_that_lost_its_machine_waits_for_another_one(cluster, caplog):
    section = RayClusterConfig(name="ray", address=cluster.address, start_timeout_s=4.0)
    session = RaySession(section)
    try:
        pool = Pool(session, "main", 4)
        gpus = pool.gpus()
        assert len({gpu.node for gpu in gpus}) == 2
        assert [gpu.number for gpu in gpus] == ["0", "1", "0", "1"]
        with pytest.raises(NoRoomError, match="would be on several machines"):
            Seat(pool, (1, 2)).take()
        options, visible = Seat(pool, (2, 3)).take()
        assert visible == "0,1"
        assert options["scheduling_strategy"].node_id == gpus[2].node
        cluster.remove_node(cluster.second, allow_graceful=False)
        third = cluster.add_node(num_cpus=2, num_gpus=2)
        section.start_timeout_s = 60.0
        again = pool.gpus(again=True)
        assert {gpu.node for gpu in again} == {session.here, third.node_id}
        cluster.remove_node(third, allow_graceful=False)
        section.start_timeout_s = 5.0
        with pytest.raises(NoRoomError, match="pool main: Ray has no 4 free GPUs within 5 s"):
            pool.gpus(again=True)
    finally:
        session.close()


def test_more_gpus_than_there_are(cluster, model_folder):
    config = config_of(model_folder, cluster, {"main": 9}, colocate=True)
    with pytest.raises(ConfigError, match=r"^cluster: .* need 9 GPUs \(main 9\), and Ray has 4"):
        build(validate(Config.model_validate(config)))
