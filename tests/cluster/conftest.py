"""One Ray cluster of two nodes for all tests: starting it takes seconds."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from clew.cluster.connection import Cluster, connected
from tests.cluster.forked import START_WORKER, worker_server
from tests.object_server import ObjectServer

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Without the processes that collect logs and ask for more machines: no test needs them.
NODE = {
    "num_cpus": 2,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    "worker_path": START_WORKER,
}


@pytest.fixture(scope="session")
def nodes(
    object_server: ObjectServer,  # noqa: ARG001 - it must run
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """The cluster itself; its nodes can be removed and added. They find the S3 server and its
    credentials in their own environment, as those of users do."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Nodes

    with worker_server(tmp_path_factory.mktemp("ray")):
        nodes = Nodes(initialize_head=True, head_node_args=NODE)
        try:
            ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> Iterator[Cluster]:  # noqa: ARG001 - it must run
    with connected("ray") as cluster:
        yield cluster
