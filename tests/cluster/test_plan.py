"""How many workers a cluster gets, and why."""

import pytest

from clew.base.errors import InputError
from clew.cluster.connection import Cluster, plan_workers

GB = 1 << 30


def machines(cores: int, gpus: int = 0) -> Cluster:
    return Cluster(ray=None, cores=cores, gpus=gpus, nodes=1)


@pytest.mark.parametrize(
    ("cluster", "settings", "sentence"),
    [
        (machines(2), {}, "2 workers with 1 thread each: one per core"),
        (machines(2), {"units": 1}, "1 worker with 2 threads: there is 1 shard left to do"),
        (machines(2), {"workers": 1}, "1 worker with 2 threads: as requested"),
        (
            machines(2),
            {"free_bytes": 5 * GB, "worker_bytes": 3 * GB},
            "1 worker with 2 threads: each needs about 3.22 GB of the 5.37 GB of free memory",
        ),
        (machines(8), {"threads": 4}, "2 workers with 4 threads each: 4 threads each on 8 cores"),
        (
            machines(32, gpus=4),
            {"use_gpus": True},
            "4 workers with 1 GPU and 8 threads each: one per GPU",
        ),
        (machines(1), {}, "1 worker with 1 thread: there is one core"),
    ],
)
def test_a_plan_says_why(cluster: Cluster, settings: dict, sentence: str) -> None:
    assert str(plan_workers(cluster, **({"units": 100} | settings))).startswith(sentence)


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match="workers is 0: it must be 1 or more"):
        plan_workers(machines(2), units=1, workers=0)
