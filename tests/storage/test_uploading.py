"""A store at a URL: readers see whole shards only, and a killed writer loses only its torn end."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import StoreError
from clew.base.urls import as_path
from clew.storage.manifest import read_manifest, start_manifest, update_manifest
from clew.storage.places import open_place
from clew.storage.reader import refuse_damaged_shards
from clew.storage.repair import commit_shard
from clew.storage.uploading import unfinished_pieces
from tests.forking import fork
from tests.object_server import ObjectServer
from tests.stores import make_rows, new_manifest, open_writer, write_groups, write_store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("scratch")]


@pytest.fixture
def url(s3_url: str) -> Path:
    """A store of two shards at a URL, of which none is made."""
    store = as_path(s3_url)
    start_manifest(store, new_manifest(24))
    return store


def make_shard(store: Path, number: int = 0) -> bool:
    writer = open_writer(store, number)
    write_groups(writer)
    return commit_shard(store, writer, writer.complete())


def scratch_files(scratch: Path) -> list[str]:
    return [path.name for path in (scratch / f"clew-{os.getuid()}").iterdir()]


def test_a_store_at_a_url_equals_that_in_a_folder(url: Path, tmp_path: Path, scratch: Path) -> None:
    local = write_store(tmp_path / "store", 2, manifest=read_manifest(url))
    assert make_shard(url, 0)
    assert make_shard(url, 1)
    assert read_manifest(url) == read_manifest(local)
    place = open_place(url)
    assert place.names() == ["batch_0000.arrow", "batch_0001.arrow", "manifest.json"]
    for name in place.names():
        assert place.read(name, 1 << 20).data == (local / name).read_bytes()
    assert unfinished_pieces(url, 0).names() == []
    assert scratch_files(scratch) == []


def _write_until_killed(store: Path) -> None:
    writer = open_writer(store, 0)
    for start in (0, 4):
        writer.write(make_rows(range(start, start + 4)))
    os.kill(os.getpid(), signal.SIGKILL)


def test_finished_record_batches_of_a_killed_writer_are_taken_over(
    url: Path, tmp_path: Path, scratch: Path
) -> None:
    process = fork(_write_until_killed, url)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert open_place(url).names() == ["manifest.json"]
    writer = open_writer(url, 0)
    assert writer.recovered_ids == set(range(8))
    write_groups(writer)
    assert commit_shard(url, writer, writer.complete())
    local = write_store(tmp_path / "store", 1, manifest=replace(read_manifest(url), shards=()))
    assert read_manifest(url).shards == read_manifest(local).shards
    assert unfinished_pieces(url, 0).names() == []
    assert scratch_files(scratch) == []


def test_a_stopped_writer_leaves_its_record_batches(url: Path, scratch: Path) -> None:
    writer = open_writer(url, 0)
    writer.write(make_rows(range(4)))
    writer.abandon()
    assert scratch_files(scratch) == []
    resumed = open_writer(url, 0)
    assert resumed.recovered_ids == set(range(4))
    resumed.abandon()


def test_scratch_space_never_holds_more_than_two_shards(
    url: Path, scratch: Path, object_server: ObjectServer
) -> None:
    """Not even for a shard that was stopped near its end, and that another worker put meanwhile."""
    stopped, dead = open_writer(url, 0), open_writer(url, 0)
    stopped.write(make_rows(range(11)))
    stopped.abandon()
    write_groups(dead)
    size = dead.complete().bytes
    open_place(url).create("batch_0000.arrow", dead.part)
    dead.abandon()
    with object_server.looking(lambda: count_bytes(scratch)) as sizes:
        resumed = open_writer(url, 0)
        write_groups(resumed)
        assert commit_shard(url, resumed, resumed.complete())
        assert make_shard(url, 1)
    assert size < max(sizes) <= 2 * size
    assert scratch_files(scratch) == []


def count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_first_of_two_workers_with_the_same_shard_wins(url: Path) -> None:
    first, second = open_writer(url, 0), open_writer(url, 0)
    for writer in (first, second):
        write_groups(writer)
    assert commit_shard(url, first, first.complete())
    before = open_place(url).entries()
    assert not commit_shard(url, second, second.complete())
    assert open_place(url).entries() == before


def test_a_shard_that_was_put_but_not_listed_is_adopted(url: Path) -> None:
    """Another worker's rounding may differ: what lies there is what is listed."""
    dead, living = open_writer(url, 0), open_writer(url, 0)
    write_groups(dead, groups=2)
    put = dead.complete()
    write_groups(living)
    open_place(url).create(put.file, dead.part)
    dead.abandon()
    mine = living.complete()
    assert mine.sha256 != put.sha256
    assert commit_shard(url, living, mine)
    assert read_manifest(url).shards == (put,)


def test_what_is_no_shard_is_replaced(url: Path) -> None:
    writer = open_writer(url, 0)
    write_groups(writer)
    open_place(url).create("batch_0000.arrow", b"torn")
    entry = writer.complete()
    assert commit_shard(url, writer, entry)
    assert open_place(url).entries()["batch_0000.arrow"].size == entry.bytes


def test_a_shard_grows(url: Path) -> None:
    writer = open_writer(url, 0)
    writer.write(make_rows(range(4)))
    assert commit_shard(url, writer, writer.complete())
    writer = open_writer(url, 0)
    assert writer.recovered_ids == set(range(4))
    write_groups(writer)
    assert commit_shard(url, writer, writer.complete())
    assert read_manifest(url).rows == 12
    refuse_damaged_shards(url, read_manifest(url))


def test_many_workers_list_their_shards_at_once(url: Path) -> None:
    names = [f"note {n}" for n in range(6)]

    def add(name: str) -> None:
        update_manifest(url, lambda now: replace(now, notes=(*now.notes, name)))

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_manifest(url).notes) == names


def test_a_writer_without_permission_to_delete_finishes(
    url: Path, object_server: ObjectServer
) -> None:
    with object_server.refusing("DELETE", "403 Forbidden", "AccessDenied"):
        assert make_shard(url)
    assert read_manifest(url).rows == 12
    assert len(unfinished_pieces(url, 0).names()) == 3


def test_a_missing_or_truncated_shard_is_refused(url: Path) -> None:
    assert make_shard(url)
    open_place(url).replace("batch_0000.arrow", b"short", None)
    with pytest.raises(StoreError, match="has 5 bytes, but the manifest says"):
        refuse_damaged_shards(url, read_manifest(url))
    open_place(url).delete("batch_0000.arrow")
    with pytest.raises(StoreError, match=f"is missing from {url}"):
        refuse_damaged_shards(url, read_manifest(url))


def test_a_url_without_a_store_is_named(s3_url: str) -> None:
    with pytest.raises(StoreError, match=f'there is no store at "{s3_url}"'):
        read_manifest(as_path(s3_url))
