"""Workers on Ray share the work, are replaced when they die, and stop in order."""

import functools
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from clew.base.errors import ClewError, InputError
from clew.base.progress import Event, OthersAdvanced, WorkAdvanced, WorkersAdvanced, WorkStarted
from clew.cluster.connection import Cluster, WorkerPlan, connected
from clew.cluster.workers import Spread, run_workers, spread
from tests.cluster import working
from tests.events import notes, pick
from tests.forking import HANGS_SECONDS, fork

pytestmark = pytest.mark.slow  # starting Ray takes seconds


def plan(workers: int) -> WorkerPlan:
    return WorkerPlan(workers=workers, threads=1, gpus=0, reason="a test")


def never() -> bool:
    return False


@pytest.mark.parametrize("dying", [0, 2])
def test_workers_do_each_unit_once_although_some_are_killed(
    cluster: Cluster, tmp_path: Path, dying: int
) -> None:
    events: list[Event] = []
    work = functools.partial(working.square, tmp_path, dying)
    outcomes = run_workers(cluster, plan(2), work, events.append, never)
    assert working.find_pending(tmp_path) == []
    assert not any((tmp_path / "leases").glob("lease-*"))
    assert sum(outcome.result for outcome in outcomes) == working.UNITS
    assert len([*tmp_path.glob("dead-*")]) == dying
    assert len([note for note in notes(events) if "died; another one is started" in note]) == dying
    # All workers are shown as one. The first to report may have found some units done.
    [started] = pick(events, WorkStarted)
    advanced = sum(event.count for event in pick(events, WorkAdvanced))
    assert (started.planned, started.done + advanced) == (working.UNITS, working.UNITS)
    assert notes(events).count("all workers say this") == 1
    assert all(len(event.workers) <= 2 for event in pick(events, WorkersAdvanced))
    assert not pick(events, OthersAdvanced)


def test_the_error_of_a_worker_is_raised_as_it_was(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="edges is 2: it must be odd") as caught:
        run_workers(cluster, plan(1), working.refuse, [].append, never)
    assert caught.value.setting == "edges"


def test_workers_that_all_die_end_the_run_with_the_reason(cluster: Cluster) -> None:
    with pytest.raises(ClewError, match="3 workers died one after the other, and nothing was"):
        run_workers(cluster, plan(1), working.die, [].append, never)


def test_workers_that_are_asked_to_stop_end_in_order(cluster: Cluster, tmp_path: Path) -> None:
    work = functools.partial(working.wait_for_stop, tmp_path)
    outcomes = run_workers(
        cluster, plan(2), work, [].append, lambda: len([*tmp_path.glob("waiting-*")]) == 2
    )
    assert [outcome.is_stopped for outcome in outcomes] == [True, True]
    assert len([*tmp_path.glob("stopped-*")]) == 2


@pytest.fixture
def where(nodes: Any) -> Spread:  # noqa: ARG001 - it must run
    return Spread(cluster="ray", workers=2)


def test_items_are_spread_and_their_results_stay_in_order(where: Spread, tmp_path: Path) -> None:
    events: list[Event] = []
    setup = functools.partial(working.make_square, tmp_path)
    assert [*spread(where, setup, range(1, 10), events.append)] == [n**2 for n in range(1, 10)]
    assert len([*tmp_path.glob("dead-*")]) == 2
    assert pick(events, WorkersAdvanced)[-1].workers[0].count > 0


def test_more_workers_than_the_cluster_has_room_for_do_not_keep_items_waiting(
    where: Spread, tmp_path: Path
) -> None:
    setup = functools.partial(working.make_square, tmp_path)
    many = replace(where, workers=6, device="cpu")
    assert [*spread(many, setup, range(5, 11), [].append)] == [n**2 for n in range(5, 11)]


def test_an_error_in_an_item_is_raised_as_it_was(where: Spread, tmp_path: Path) -> None:
    setup = functools.partial(working.make_square, tmp_path)
    with pytest.raises(InputError, match="number is 101: it must be 100 or less"):
        [*spread(where, setup, [1, 101], [].append)]


def test_a_process_of_ray_that_is_killed_at_the_start_gives_one_sentence(tmp_path: Path) -> None:
    process = fork(start_ray, tmp_path / "error.txt")
    process.start()
    deadline = time.monotonic() + HANGS_SECONDS
    while not (raylets := find_raylets(process.pid)):
        assert process.is_alive() and time.monotonic() < deadline, "Ray was not started"
        time.sleep(0.001)
    raylets[0].kill()
    process.join(HANGS_SECONDS)
    assert process.exitcode == 0
    error = (tmp_path / "error.txt").read_text()
    assert error.startswith("Ray could not be started on this machine (The current node timed out")
    assert "\n" not in error and "Run the same command again" in error


def find_raylets(parent: int | None) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(parent).children(recursive=True)
        return [child for child in children if child.name() == "raylet"]
    return []


def start_ray(output: Path) -> None:
    """In a new process, where Ray does not wait 30 s for what was killed."""
    os.environ |= {"RAY_ADDRESS": "local", "RAY_raylet_start_wait_time_s": "1"}
    import ray._private.node as node  # it reads the environment

    node.time = SimpleNamespace(
        time=time.time, sleep=time.sleep, monotonic=lambda: 10 * time.monotonic()
    )
    try:
        with connected("ray", cores=1):
            output.write_text("it was started")
    except ClewError as error:
        output.write_text(str(error))
