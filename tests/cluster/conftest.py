"""Offers a cluster of two nodes on this machine."""

from __future__ import annotations

import pytest


@pytest.fixture
def cluster():
    """Two nodes on this machine, of which the driver's is the first."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.second = made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()
