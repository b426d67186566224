"""Of several workers that write the same shard, the first one's copy counts."""

from pathlib import Path

import pytest

from clew.storage.manifest import read_manifest, write_manifest
from clew.storage.repair import commit_shard
from clew.storage.verify import verify_store
from tests.stores import ROWS_PER_SHARD, new_manifest, open_writer, read_rows, write_groups


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_manifest(tmp_path, new_manifest(ROWS_PER_SHARD))
    return tmp_path


def test_a_slow_worker_whose_shard_was_taken_over_cannot_finish_it(store: Path) -> None:
    slow = open_writer(store, 0)
    write_groups(slow)
    fast = open_writer(store, 0)
    assert len(fast.recovered_ids) == ROWS_PER_SHARD, "what the slow one had written is kept"
    assert not slow.is_current
    assert not commit_shard(store, slow, slow.complete())
    assert fast.is_current, "the other's half-written file must stay"
    assert commit_shard(store, fast, fast.complete(), ["a note"])
    assert read_manifest(store).notes == ("a note",)
    assert verify_store(store) == []
    assert len(read_rows(fast.path)) == ROWS_PER_SHARD


def test_a_shard_that_is_listed_already_is_not_replaced(store: Path) -> None:
    first = open_writer(store, 0)
    write_groups(first)
    assert commit_shard(store, first, first.complete())
    listed, content = read_manifest(store), first.path.read_bytes()
    late = open_writer(store, 0)
    write_groups(late)
    assert not commit_shard(store, late, late.complete())
    assert read_manifest(store) == listed and first.path.read_bytes() == content
    assert [path.name for path in store.glob("batch_*")] == ["batch_0000.arrow"]
