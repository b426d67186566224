"""A store at a URL is checked and repaired as one in a folder is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import StoreLockedError
from clew.base.urls import as_path
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import MANIFEST_NAME, read_manifest, start_manifest, update_manifest
from clew.storage.place import Place
from clew.storage.places import open_place
from clew.storage.repair import commit_shard, ensure_manifest, repair_store
from clew.storage.uploading import unfinished_pieces
from clew.storage.verify import find_stores, verify_store
from tests.object_server import ObjectServer
from tests.stores import make_rows, new_manifest, open_writer, write_groups, write_store

pytestmark = pytest.mark.slow


@pytest.fixture
def url(s3_url: str) -> Path:
    return write_store(as_path(s3_url), shards=2)


@pytest.fixture
def place(url: Path) -> Iterator[Place]:
    yield open_place(url)
    assert not open_place(url).child(".work").names(), "a lease was left"


def damage(place: Place, name: str, offset: int) -> None:
    content = bytearray(place.read(name, 1 << 20).data)
    content[offset] ^= 0xFF
    place.replace(name, bytes(content), None)


def make_missing(store: Path) -> set[int]:
    """What the same extraction does next, with the first shard; returns the rows that it need not
    make."""
    writer = open_writer(store, 0)
    write_groups(writer)
    assert commit_shard(store, writer, writer.complete())
    return writer.recovered_ids


def test_an_intact_store_has_no_problems(url: Path, place: Place) -> None:
    assert verify_store(url) == []
    assert place.names() == ["batch_0000.arrow", "batch_0001.arrow", MANIFEST_NAME]
    assert find_stores(url) == [url]
    assert find_stores(url.parent) == [url]


def test_a_corrupted_shard_is_named_and_only_what_is_lost_is_made_again(
    url: Path, place: Place
) -> None:
    before = place.read("batch_0000.arrow", 1 << 20).data
    damage(place, "batch_0000.arrow", before.find(b"question 5"))
    [problem] = verify_store(url)
    assert (problem.kind, problem.file, problem.lost_rows) == ("damaged", "batch_0000.arrow", 4)
    assert "8 of its 12 rows are intact" in problem.message
    [line] = repair_store(url)
    assert "marked batch_0000.arrow as half-written, keeping its 8 intact rows" in line
    assert place.names() == ["batch_0001.arrow", MANIFEST_NAME]
    assert [one.kind for one in verify_store(url)] == ["part"]
    assert make_missing(url) == {*range(4), *range(8, 12)}
    assert verify_store(url) == []
    assert unfinished_pieces(url, 0).names() == []


def test_a_shard_is_repaired_without_the_permission_to_delete(
    url: Path, object_server: ObjectServer
) -> None:
    place = open_place(url)
    damage(place, "batch_0000.arrow", -200)
    with object_server.refusing("DELETE", "403 Forbidden", "AccessDenied"):
        repair_store(url)
        make_missing(url)
    assert verify_store(url) == []


def test_a_missing_shard_is_forgotten(url: Path, place: Place) -> None:
    place.delete("batch_0000.arrow")
    assert [one.kind for one in verify_store(url)] == ["missing"]
    repair_store(url)
    assert [one.kind for one in verify_store(url)] == ["gap"]


def test_a_shard_that_is_not_listed_is_added(url: Path) -> None:
    before = read_manifest(url)
    update_manifest(url, lambda manifest: replace(manifest, shards=manifest.shards[1:]))
    assert [one.kind for one in verify_store(url)] == ["unlisted"]
    assert "added batch_0000.arrow with 12 rows" in repair_store(url)[0]
    assert read_manifest(url) == before


def test_what_is_foreign_is_moved_aside(url: Path, place: Place) -> None:
    place.replace("batch_0000.arrow", b"a holiday photo", None)
    assert [one.kind for one in verify_store(url)] == ["foreign"]
    assert "to batch_0000.arrow.foreign" in repair_store(url)[0]
    assert place.read("batch_0000.arrow.foreign", 99).data == b"a holiday photo"


def test_a_lost_manifest_is_rebuilt_from_the_shards(url: Path, place: Place) -> None:
    before = read_manifest(url)
    place.delete(MANIFEST_NAME)
    assert "rebuilt it" in (ensure_manifest(url) or "")
    repair_store(url)
    assert read_manifest(url).shards == before.shards


def test_record_batches_of_a_stopped_writer_are_reported(s3_url: str) -> None:
    store = as_path(s3_url)
    start_manifest(store, new_manifest(12))
    writer = open_writer(store, 0)
    writer.write(make_rows(range(4)))
    writer.abandon()
    [problem] = verify_store(store)
    assert problem.is_unfinished
    assert "half-written, with 1 record batch kept" in problem.message


def test_a_store_that_is_written_is_not_repaired(url: Path) -> None:
    damage(open_place(url), "batch_0000.arrow", -200)
    with writer_lock(url, Part(), shared=True), pytest.raises(StoreLockedError):
        repair_store(url)
