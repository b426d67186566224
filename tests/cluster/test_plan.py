"""How many workers a cluster gets, and why."""

from dataclasses import dataclass

import pytest

from clew.base.errors import InputError
from clew.cluster import plan_crew

GB = 1 << 30


@dataclass(frozen=True)
class Machines:
    cores: int
    gpus: int = 0


@pytest.mark.parametrize(
    ("machines", "settings", "sentence"),
    [
        (Machines(2), {}, "2 workers with 1 thread each: one per core"),
        (Machines(2), {"units": 1}, "1 worker with 2 threads: there is 1 shard left to do"),
        (Machines(2), {"workers": 1}, "1 worker with 2 threads: as requested"),
        (
            Machines(2),
            {"free_bytes": 5 * GB, "worker_bytes": 3 * GB},
            "1 worker with 2 threads: each needs about 3.22 GB of the 5.37 GB of free memory",
        ),
        (Machines(8), {"threads": 4}, "2 workers with 4 threads each: 4 threads each on 8 cores"),
        (
            Machines(32, gpus=4),
            {"use_gpus": True},
            "4 workers with 1 GPU and 8 threads each: one per GPU",
        ),
        (Machines(1), {}, "1 worker with 1 thread: there is one core"),
    ],
)
def test_a_plan_says_why(machines: Machines, settings: dict, sentence: str) -> None:
    assert str(plan_crew(machines, **({"units": 100} | settings))).startswith(sentence)


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match="workers is 0: it must be 1 or more"):
        plan_crew(Machines(2), units=1, workers=0)
