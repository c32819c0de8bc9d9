"""Offers Ray's local cluster, and one of two nodes on this machine."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig

SECTION = {"name": "ray", "address": "local", "heartbeat_s": 2.0}


@pytest.fixture(scope="module")
def session():
    made = RaySession(RayClusterConfig(**SECTION))
    yield made
    scratch = made.scratch
    made.close()
    assert not scratch.exists()


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def cluster():
    """Two nodes on this machine, of which the driver's is the first."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.second = made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()
