"""Processes that share a store by leases make the store that one process makes."""

import signal
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError, StoreLockedError
from clew.base.urls import as_path
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import read_manifest
from clew.storage.places import open_place
from clew.storage.uploading import numbers_with_pieces
from clew.storage.verify import verify_store
from clew.storage.writer import read_intact_batches
from tests.hallucination.capture.processes import ClewProcess
from tests.object_server import ObjectServer
from tests.stores import after_one_batch, assert_same_store

SETTINGS = (
    *("--batch-size", "20", "--generation-batch", "8", "--max-new-tokens", "6"),
    *("--node-dim", "4", "--edges-per-token", "4", "--device", "cpu", "--threads", "1"),
)


def assert_whole(store: Path, expected: Path) -> None:
    assert verify_store(store) == []
    assert_same_store(store, expected)
    assert open_place(store).child(".work").names() == []
    left = [path.name for path in store.iterdir() if path.suffix in (".part", ".recovered")]
    assert left == [] and not [*store.glob(".joined-*")]


def count_shards(store: Path) -> int:
    return len(read_manifest(store).shards)


def has_rows(part: Path) -> bool:
    return next(read_intact_batches(part), None) is not None


@pytest.fixture
def start(model_folder: Path, questions_file: Path, tmp_path: Path) -> Any:
    """Starts `clew extract` with the settings of `compact_store`."""

    def begin(out: Path | str, *more: str, **variables: str) -> ClewProcess:
        where = ("--model", model_folder, "--questions", questions_file, "--out", out)
        words = ["extract", *map(str, where), *SETTINGS, *more]
        return ClewProcess(words, tmp_path / f"{len(more)}.txt", **variables)

    return begin


def test_a_process_joins_a_store_that_does_not_exist_yet(
    capture: Any, compact_store: Path, tmp_path: Path
) -> None:
    assert capture(join=True).finished
    assert_whole(tmp_path / "new", compact_store)


def test_a_stopped_capture_is_finished_by_a_process_that_joins(
    capture: Any, compact_store: Path, tmp_path: Path
) -> None:
    assert not capture(should_stop=after_one_batch()).finished
    assert capture(join=True).finished
    assert_whole(tmp_path / "new", compact_store)


@pytest.mark.slow
def test_a_process_joins_a_running_capture_and_both_fill_the_store(
    start: Any, compact_store: Path, tmp_path: Path
) -> None:
    """The first is halted inside its first shard until the other has made the other three."""
    store = tmp_path / "store"
    with start(store) as first:
        assert first.wait_until(lambda: any(store.glob("*.part")))
        first.halt(store)
        with start(store, "--join") as second:
            assert second.wait_until(lambda: count_shards(store) == 3), second.output
            first.send(signal.SIGCONT)
            assert first.wait() == 0, first.output
            assert second.wait() == 0, second.output
    assert_whole(store, compact_store)


@pytest.mark.slow
def test_the_shard_of_a_killed_process_is_taken_over_with_its_rows(
    start: Any, compact_store: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with start(store) as first:
        assert first.wait_until(lambda: any(has_rows(part) for part in store.glob("*.part")))
        first.halt(store)
        with start(store, "--join") as second:
            assert second.wait_until(lambda: count_shards(store) == 3), second.output
            first.send(signal.SIGKILL)
            assert second.wait() == 0, second.output
            assert "traces recovered from an interrupted run" in second.output
    assert_whole(store, compact_store)


@pytest.mark.slow
def test_a_killed_capture_at_a_url_is_finished_by_processes_that_join(
    start: Any, object_server: ObjectServer, compact_store: Path, tmp_path: Path
) -> None:
    """Two at once; the rows that the first had finished are kept."""
    url, store = object_server.new_url(), tmp_path / "fetched"
    variables = object_server.environment
    with start(url, **variables) as first:
        assert first.wait_until(lambda: numbers_with_pieces(as_path(url)) != []), first.output
        first.send(signal.SIGKILL)
        first.wait()
    with (
        start(url, "--join", **variables) as second,
        start(url, "--join", "-q", **variables) as third,
    ):
        assert second.wait() == 0, second.output
        assert third.wait() == 0, third.output
    store.mkdir()
    for name in open_place(url).names():
        open_place(url).fetch(name, store / name)
    assert open_place(url).child(".work").names() == []
    assert_whole(store, compact_store)


def test_join_and_part_are_refused_together(capture: Any) -> None:
    with pytest.raises(InputError, match='part is "1/2": a process that joins takes any pending'):
        capture(join=True, part=Part(index=1, count=2))


def test_a_store_that_is_being_repaired_cannot_be_joined(capture: Any, tmp_path: Path) -> None:
    with (
        writer_lock(tmp_path / "new", Part()),
        pytest.raises(StoreLockedError, match="Wait until it finishes: it cannot be joined"),
    ):
        capture(join=True)
