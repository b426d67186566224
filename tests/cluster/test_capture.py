"""A capture on a cluster makes the store that one process makes, whoever dies meanwhile."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from clew.base.errors import InputError
from clew.base.progress import Event, WorkAdvanced
from clew.hallucination.capture import extract, extract_on_cluster
from clew.storage.leases import Leases
from clew.storage.manifest import has_manifest, read_manifest
from clew.storage.places import open_place
from clew.storage.verify import verify_store
from clew.storage.writer import read_intact_batches
from tests.builders import write_questions
from tests.cluster.conftest import NODE
from tests.events import notes, pick
from tests.hallucination.capture.processes import ClewProcess
from tests.object_server import ObjectServer
from tests.stores import assert_same_store, one_thread, tiny_config

pytestmark = pytest.mark.slow

# `make fuzz` kills 10 workers and two drivers. Each new worker loads PyTorch, which takes seconds.
KILLS = int(os.environ.get("CLEW_TEST_KILLS", "1"))
QUESTIONS = 90
SHARDS = 9
CHANGES = {"shard_size": 10, "generation_batch": 4, "threads": 1}
WORDS = (
    *("--shard-size", "10", "--generation-batch", "4", "--max-new-tokens", "6", "--node-dim", "4"),
    *("--edges-per-token", "4", "--device", "cpu", "--threads", "1"),
)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("asked") / "questions.jsonl", QUESTIONS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, questions: Path) -> Path:
    """What one process makes."""
    out = tmp_path_factory.mktemp("alone") / "store"
    with one_thread():
        extract(tiny_config(model_folder, questions, out, **CHANGES))
    return out


@pytest.fixture
def capture(nodes: Any, model_folder: Path, questions: Path, tmp_path: Path) -> Any:  # noqa: ARG001
    """Captures into `tmp_path/store` on the cluster; returns the events."""

    def run(workers: int, watch: Callable[[Event], object] = lambda _: None) -> list[Event]:
        events: list[Event] = []

        def report(event: Event) -> None:
            events.append(event)
            watch(event)

        config = tiny_config(model_folder, questions, tmp_path / "store", **CHANGES)
        result = extract_on_cluster(config, report, cluster="ray", workers=workers)
        assert result.finished
        return events

    return run


@pytest.fixture
def start(nodes: Any, model_folder: Path, questions: Path, tmp_path: Path) -> Any:
    """Starts `clew extract` into `tmp_path/store`, in a process of its own."""

    def begin(*more: str, address: str = nodes.address) -> ClewProcess:
        store = tmp_path / "store"
        where = ("--model", model_folder, "--questions", questions, "--out", store)
        words = ["extract", *map(str, where), *WORDS, *more]
        return ClewProcess(words, tmp_path / f"{time.monotonic()}.txt", RAY_ADDRESS=address)

    return begin


def assert_whole(store: Path, expected: Path) -> None:
    """Every value and id, no shard twice, none missing, and nothing left of the work."""
    assert verify_store(store) == []
    assert_same_store(store, expected)
    numbers = [shard.batch_number for shard in read_manifest(store).shards]
    assert numbers == list(range(SHARDS))
    assert read_manifest(store).settings == read_manifest(expected).settings
    for number in range(SHARDS):
        name = f"batch_{number:04d}.arrow"
        assert group_sizes(store / name) == group_sizes(expected / name)
    assert not (store / ".work").exists()
    assert not [*store.glob(".joined-*"), *store.glob("*.part"), *store.glob("*.recovered")]


def group_sizes(shard: Path) -> list[int]:
    return [batch.num_rows for batch in read_intact_batches(shard)]


def find_workers(store: Path) -> list[int]:
    """The processes that hold a lease for a shard."""
    leases = Leases(open_place(store).child(".work"))
    records = [leases.read(name) for name in leases.names() if name.isdecimal()]
    return [record.owner.pid for record in records if record and not record.owner.has_ended()]


def wait_for_workers(store: Path, process: ClewProcess) -> list[int]:
    """Some, or none if all work is done."""
    process.wait_until(lambda: find_workers(store) != [])
    return find_workers(store)


def test_several_workers_make_the_same_store(capture: Any, expected: Path, tmp_path: Path) -> None:
    events = capture(2)
    assert_whole(tmp_path / "store", expected)
    assert sum(event.count for event in pick(events, WorkAdvanced)) == QUESTIONS
    assert notes(events)[0].startswith("2 workers")


def test_ray_is_started_with_workers_that_load_the_package_themselves(
    start: Any, tmp_path: Path
) -> None:
    """The only test whose workers are not forked (`tests.cluster.forked`)."""
    with start("--cluster", "ray", "--num-samples", "10", address="local") as driver:
        assert driver.wait() == 0, driver.output
    assert "1 worker " in driver.output and read_manifest(tmp_path / "store").rows == 10


def test_workers_and_drivers_killed_at_random_lose_nothing(
    start: Any, expected: Path, tmp_path: Path
) -> None:
    chance, left, stores = random.Random(0), {"worker": KILLS, "driver": KILLS // 5 or 1}, 0
    while any(left.values()):
        store, stores = tmp_path / f"{stores}", stores + 1
        while not is_complete(store):
            with start("--cluster", "ray", "--workers", "2", "--out", str(store)) as driver:
                kill_some(driver, store, left, chance)
                assert driver.wait() in (0, -signal.SIGKILL), driver.output
        assert_whole(store, expected)


def kill_some(
    driver: ClewProcess, store: Path, left: dict[str, int], chance: random.Random
) -> None:
    """Until it has ended, or enough were killed."""
    while any(left.values()) and (workers := wait_for_workers(store, driver)):
        time.sleep(chance.uniform(0, 0.5))  # any moment will do
        kind = chance.choice([kind for kind, count in left.items() for _ in range(count)])
        left[kind] -= 1
        with suppress(ProcessLookupError):
            os.kill(driver.pid if kind == "driver" else chance.choice(workers), signal.SIGKILL)


def is_complete(store: Path) -> bool:
    return has_manifest(store) and len(read_manifest(store).shards) == SHARDS


def test_a_node_that_is_lost_loses_no_rows(
    nodes: Any, capture: Any, expected: Path, tmp_path: Path
) -> None:
    node = nodes.add_node(**NODE)
    store, lost = tmp_path / "store", []

    def kill_node(event: Event) -> None:
        if isinstance(event, WorkAdvanced) and not lost:
            lost.append(node)
            nodes.remove_node(node, allow_graceful=False)

    events = capture(4, kill_node)
    assert lost and any("died; another one is started" in note for note in notes(events))
    assert_whole(store, expected)


def test_a_process_joins_a_cluster_after_the_half(
    start: Any, expected: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"

    def is_half_done() -> bool:
        return (store / "manifest.json").exists() and len(read_manifest(store).shards) > SHARDS // 2

    with start("--cluster", "ray", "--workers", "1") as driver:
        assert driver.wait_until(is_half_done), driver.output
        with start("--join") as joined:
            assert joined.wait() == 0, joined.output
        assert driver.wait() == 0, driver.output
    assert_whole(store, expected)


def test_a_killed_driver_and_a_killed_process_that_joined_leave_the_rest_to_another_driver(
    start: Any, expected: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    on_cluster = ("--cluster", "ray", "--workers", "1")
    with start(*on_cluster) as first, start(*on_cluster) as second, start("--join") as joined:
        assert joined.wait_until(lambda: joined.pid in find_workers(store)), joined.output
        joined.send(signal.SIGKILL)
        assert first.wait_until(lambda: find_workers(store) not in ([], [joined.pid]))
        first.send(signal.SIGKILL)
        assert second.wait() == 0, second.output
        assert (joined.wait(), first.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert_whole(store, expected)


def test_ray_that_is_lost_gives_one_sentence_and_the_run_resumes_without_it(
    start: Any, expected: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with start("--cluster", "ray", "--workers", "1", address="local") as driver:
        assert driver.wait_until(lambda: find_workers(store) != []), driver.output
        [worker] = map(psutil.Process, find_workers(store))
        worker.suspend()  # or it may be done before its end is noticed
        for process in psutil.Process(driver.pid).children(recursive=True):
            if process.name() == "raylet":
                process.kill()
        assert driver.wait() == 1, driver.output
        with suppress(psutil.NoSuchProcess):  # Ray ends it as well
            worker.kill()
        psutil.wait_procs([worker])
    assert "Traceback" not in driver.output
    assert "Ray's process on this machine (the raylet) has ended. Run the" in driver.output
    with start() as alone:
        assert alone.wait() == 0, alone.output
    assert_whole(store, expected)


def test_one_ctrl_c_stops_all_workers_in_order(start: Any, expected: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with start("--cluster", "ray", "--workers", "2") as driver:
        workers = wait_for_workers(store, driver)
        driver.send(signal.SIGINT)
        assert driver.wait() == 130, driver.output
        assert "Traceback" not in driver.output and "To resume: clew extract" in driver.output
    assert not [pid for pid in workers if psutil.pid_exists(pid) and is_working(pid)]
    assert find_workers(store) == []
    with start("--cluster", "ray", "--workers", "2") as driver:
        assert driver.wait() == 0, driver.output
    assert_whole(store, expected)


def is_working(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_other_settings_are_refused_by_the_driver(
    capture: Any, start: Any, expected: Path, tmp_path: Path
) -> None:
    events = capture(1)
    assert notes(events)[0].startswith("1 worker ")
    assert_whole(tmp_path / "store", expected)
    with start("--cluster", "ray", "--workers", "1", "--max-new-tokens", "5") as driver:
        assert driver.wait() == 1, driver.output
        assert "was started with different settings" in driver.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"join": True}, "the workers of a cluster share all shards: omit `join`"),
        ({"device": "cuda:1"}, "device is .cuda:1.: choose from: auto, cpu, cuda"),
    ],
)
def test_settings_that_a_cluster_cannot_use_are_refused(
    model_folder: Path, questions: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    config = tiny_config(model_folder, questions, tmp_path / "store", **changes)
    with pytest.raises(InputError, match=message):
        extract_on_cluster(config, cluster="ray")


def test_workers_make_the_same_store_at_a_url(
    start: Any, expected: Path, object_server: ObjectServer, s3_url: str, tmp_path: Path
) -> None:
    """Also with the credentials of the driver, which no worker is told in any other way."""
    with start("--cluster", "ray", "--workers", "2", "--out", s3_url) as driver:
        assert driver.wait() == 0, driver.output
    place, here = open_place(s3_url), tmp_path / "store"
    here.mkdir()
    for name in place.names():
        place.fetch(name, here / name)
    assert_whole(here, expected)
    assert place.folders() == [] and object_server.environment["AWS_SECRET_ACCESS_KEY"] not in (
        driver.output + (here / "manifest.json").read_text() + (here / "run.toml").read_text()
    )
