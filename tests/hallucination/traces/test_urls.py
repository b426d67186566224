"""Traces at URLs: read one by one in one round trip, or whole batches."""

from pathlib import Path

import pytest

import clew
from clew.hallucination.traces import Trace, TraceBatchLoader
from clew.storage.mirror import open_folder
from tests.object_server import ObjectServer, upload


@pytest.fixture(scope="module")
def url(full_store: Path, object_server: ObjectServer) -> str:
    return upload(full_store, object_server.new_url())


@pytest.fixture
def loader(url: str, tmp_path: Path) -> TraceBatchLoader:
    return TraceBatchLoader(url, cache_dir=tmp_path / "cache")


def assert_same(found: Trace | None, expected: Trace | None) -> None:
    assert found is not None
    assert expected is not None
    assert list(found) == list(expected)
    for name in expected:
        one, two = found[name], expected[name]
        assert one.tobytes() == two.tobytes() if hasattr(two, "tobytes") else one == two, name


def test_a_trace_comes_in_one_round_trip_without_its_shard(
    loader: TraceBatchLoader, full_store: Path, object_server: ObjectServer
) -> None:
    local = TraceBatchLoader(full_store)
    loader.get_trace_by_global_id(5)  # the metadata of its shard
    before = len(object_server.requests)
    for number in (7, 9):
        assert_same(loader.get_trace_by_global_id(number), local.get_trace_by_global_id(number))
    # Pieces that lie close together are one request.
    assert len(object_server.requests) - before == 2
    assert loader.get_trace_by_global_id(10**9) is None
    assert not list(loader.traces_dir.glob("batch_*"))


def test_all_traces_are_those_of_the_folder(
    loader: TraceBatchLoader, url: str, full_store: Path
) -> None:
    for found, expected in zip(loader, TraceBatchLoader(full_store), strict=True):
        assert_same(found, expected)
    assert_same(loader.get_trace_by_global_id(3), next(t for t in loader if t["example_id"] == 3))
    assert url in repr(loader)


def test_labels_and_pages_need_no_whole_shard(
    url: str, full_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = {"cache_dir": tmp_path / "cache"}
    there = clew.label(url, out="there.csv", **cache)
    here = clew.label(full_store, out="here.csv")
    assert there.table.equals(here.table)
    page = clew.show(url, id=4, scores_file="there.csv", out="page.html", **cache)
    assert page.path.exists()
    assert url in page.path.read_text()
    assert not list(open_folder(url, **cache).glob("batch_*"))
