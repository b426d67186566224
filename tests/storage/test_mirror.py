"""The cache of shards from URLs: shared by processes, bounded, checked."""

import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import DiskFullError, InputError, StoreError
from clew.storage import mirror_cache
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder, open_folder
from clew.storage.mirror_cache import CacheFullError, CacheTooSmallError, hold_shard
from clew.storage.places import open_place
from clew.storage.reader import StoreReader
from tests.object_server import ObjectServer, upload
from tests.stores import flip_byte, write_store

pytestmark = pytest.mark.slow

SHARDS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards of the same size, up to some bytes. Shared: do not modify."""
    return write_store(tmp_path_factory.mktemp("store") / "store", SHARDS)


@pytest.fixture(scope="module")
def url(folder: Path, object_server: ObjectServer) -> str:
    return upload(folder, object_server.new_url())


@pytest.fixture
def mirror(url: str, tmp_path: Path) -> MirrorFolder:
    opened = open_folder(url, cache_dir=tmp_path / "cache", cache_size="1GB")
    assert isinstance(opened, MirrorFolder)
    return opened


@pytest.fixture
def shards(mirror: MirrorFolder) -> list[ShardEntry]:
    return StoreReader(mirror).shards


def count_downloads(server: ObjectServer, before: int) -> int:
    return sum(path.endswith(".arrow") for method, path in server.requests[before:])


def limit(url: str, mirror: MirrorFolder, shards: list[ShardEntry], count: float) -> None:
    """Leaves room for this many shards."""
    size = sum(path.stat().st_size for path in mirror.cache_dir.rglob("*") if path.is_file())
    room = int(size + 1000 + count * max(shard.bytes for shard in shards))
    open_folder(url, cache_dir=mirror.cache_dir, cache_size=room)


def probe_clock(folder: Path) -> int:
    """The time by the clock of the file system, in nanoseconds."""
    (folder / "clock").write_text("")
    return (folder / "clock").stat().st_ctime_ns


def cached(mirror: MirrorFolder) -> list[str]:
    return sorted(path.name for path in mirror.glob("batch_*"))


def test_a_shard_is_downloaded_once(
    mirror: MirrorFolder, folder: Path, shards: list[ShardEntry], object_server: ObjectServer
) -> None:
    before = len(object_server.requests)
    for _ in range(2):
        held = hold_shard(mirror, shards[1], None)
        assert held is not None
        assert held.path.read_bytes() == (folder / shards[1].file).read_bytes()
    assert count_downloads(object_server, before) == 1
    assert f"{mirror}".startswith("s3://")


def test_a_store_on_disk_is_not_cached(folder: Path) -> None:
    assert open_folder(f"file://{folder}") == folder
    assert hold_shard(folder, StoreReader(folder).shards[0], None) is None


def test_the_least_recently_used_shard_makes_room(
    url: str, mirror: MirrorFolder, shards: list[ShardEntry]
) -> None:
    limit(url, mirror, shards, 2.5)
    for number in (0, 1, 0, 2):
        hold_shard(mirror, shards[number], None)
    assert cached(mirror) == [shards[0].file, shards[2].file]


def test_a_shard_in_use_is_not_removed(
    url: str, mirror: MirrorFolder, shards: list[ShardEntry]
) -> None:
    limit(url, mirror, shards, 2.5)
    held = [hold_shard(mirror, shards[0], None), hold_shard(mirror, shards[1], None)]
    with pytest.raises(CacheFullError, match=r"in use: give a larger `cache_size`"):
        hold_shard(mirror, shards[2], None)
    held.pop(0)
    hold_shard(mirror, shards[2], None)
    assert cached(mirror) == [shards[1].file, shards[2].file]


def test_a_shard_larger_than_the_cache_is_refused(
    url: str, mirror: MirrorFolder, shards: list[ShardEntry]
) -> None:
    limit(url, mirror, shards, 0.5)
    open_folder(url, cache_dir=mirror.cache_dir, cache_size=shards[0].bytes - 1)
    with pytest.raises(CacheTooSmallError, match="a shard takes"):
        hold_shard(mirror, shards[0], None)


def test_nothing_else_under_the_cache_folder_is_ever_removed(
    url: str, tmp_path: Path, shards: list[ShardEntry]
) -> None:
    data = tmp_path / "data"
    own = [write_store(data / "traces", 2), write_store(data / "clew-stores/s3:/mine/store", 2)]
    before = {path: path.read_bytes() for store in own for path in store.rglob("*.*")}
    (data / "clew-stores" / "CACHEDIR.TAG").touch()  # the second lies in the cache itself
    mirror = open_folder(url, cache_dir=data, cache_size="1GB")
    assert isinstance(mirror, MirrorFolder)
    limit(url, mirror, shards, 1.5)
    for shard in shards:
        hold_shard(mirror, shard, None)
    assert cached(mirror) == [shards[-1].file]
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_that_is_not_a_cache_is_refused(url: str, tmp_path: Path) -> None:
    thesis = tmp_path / "clew-stores" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    with pytest.raises(InputError, match=r'"thesis.tex", which clew did not put there: give an'):
        open_folder(url, cache_dir=tmp_path)
    assert [path.name for path in thesis.parent.iterdir()] == ["thesis.tex"]


def test_the_cache_of_an_earlier_version_is_used(
    mirror: MirrorFolder, url: str, shards: list[ShardEntry], object_server: ObjectServer
) -> None:
    hold_shard(mirror, shards[0], None)
    mark = mirror.cache_dir / "CACHEDIR.TAG"
    text = mark.read_bytes()
    mark.rename(mark.with_name(f"{mark.name}.0123abcd.tmp"))  # or that of one that was killed
    before = len(object_server.requests)
    again = open_folder(url, cache_dir=mirror.cache_dir)
    hold_shard(again, shards[0], None)
    assert mark.read_bytes() == text
    assert count_downloads(object_server, before) == 0


def test_a_list_of_copies_removes_only_copies(url: str, mirror: MirrorFolder) -> None:
    outside = mirror.cache_dir.parent / "thesis.tex"
    outside.write_text("mine")
    names = {str(outside): "1", f"{'../' * len(mirror.parts)}{outside}": "1", "gone.json": "1"}
    (mirror / "gone.json").touch()
    (mirror / ".versions.json").write_text(json.dumps(names))
    open_folder(url, cache_dir=mirror.cache_dir)
    assert outside.exists() and not (mirror / "gone.json").exists()


def _wait_for_clock(mirror: MirrorFolder, path: Path) -> None:
    """Until a change of the file shows: a file system's clock may stand still for some
    milliseconds."""
    while probe_clock(mirror) <= path.stat().st_ctime_ns:
        pass


@pytest.mark.parametrize("damage", ["content", "length", "with the date kept"])
def test_a_shard_damaged_in_the_cache_is_downloaded_again(
    mirror: MirrorFolder, folder: Path, shards: list[ShardEntry], damage: str
) -> None:
    path = mirror / shards[0].file
    hold_shard(mirror, shards[0], None)
    before = path.stat()
    _wait_for_clock(mirror, path)
    if damage == "length":
        os.truncate(path, 50)
    else:
        flip_byte(path, 100)
    if damage == "with the date kept":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    held = hold_shard(mirror, shards[0], None)
    assert held is not None
    assert held.path.read_bytes() == (folder / shards[0].file).read_bytes()


def test_a_shard_that_many_find_damaged_is_there_for_each(
    mirror: MirrorFolder, folder: Path, shards: list[ShardEntry]
) -> None:
    right, path = (folder / shards[0].file).read_bytes(), mirror / shards[0].file
    hold_shard(mirror, shards[0], None)

    def read(barrier: threading.Barrier) -> bytes:
        barrier.wait()
        held = hold_shard(mirror, shards[0], None)
        assert held is not None
        return held.path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            _wait_for_clock(mirror, path)
            path.write_bytes(b"x" * len(right))
            barrier = threading.Barrier(8)
            assert all(found == right for found in pool.map(read, [barrier] * 8))


def test_a_shard_damaged_at_the_url_is_named(
    tmp_path: Path, folder: Path, object_server: ObjectServer
) -> None:
    url = upload(folder, object_server.new_url())
    mirror = open_folder(url, cache_dir=tmp_path / "cache")
    place = open_place(url)
    [entry] = [one for one in StoreReader(mirror).shards if one.batch_number == 2]
    content = bytearray((folder / entry.file).read_bytes())
    content[500] ^= 1
    place.replace(entry.file, bytes(content), None)
    with pytest.raises(StoreError, match=rf"{entry.file} in {url} has changed content") as caught:
        hold_shard(mirror, entry, None)
    assert f'clew.verify("{url}", repair=True)' in str(caught.value)
    place.delete(entry.file)
    with pytest.raises(StoreError, match=f"{entry.file} is missing from {url}"):
        hold_shard(mirror, entry, None)
    assert not list(mirror.glob(".*.part"))


def test_a_new_manifest_is_seen(tmp_path: Path, object_server: ObjectServer) -> None:
    url = object_server.new_url()
    for count in (1, 2):
        upload(write_store(tmp_path / f"store{count}", count), url)
        assert len(StoreReader(open_folder(url, cache_dir=tmp_path / "cache")).shards) == count


def test_another_shard_of_the_same_name_is_not_taken_for_it(
    mirror: MirrorFolder, shards: list[ShardEntry]
) -> None:
    hold_shard(mirror, shards[0], None)
    other = replace(shards[0], sha256=shards[1].sha256, bytes=shards[1].bytes)
    with pytest.raises(StoreError, match="has changed content|fewer than"):
        hold_shard(mirror, other, None)  # what is at the URL is not this either
    assert hold_shard(mirror, shards[0], None) is not None


def test_a_cache_that_cannot_be_written_is_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="cache_dir") as caught:
        open_folder(url, cache_dir=tmp_path / "cache")
    assert caught.value.setting == "cache_dir"
    with pytest.raises(InputError, match="give a path on this machine"):
        open_folder(url, cache_dir=url)


def test_a_full_disk_is_named(
    mirror: MirrorFolder, shards: list[ShardEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mirror_cache, "download", full)
    with pytest.raises(DiskFullError, match="`cache_dir` on another disk"):
        hold_shard(mirror, shards[0], None)
    assert not list(mirror.glob(".*.part"))


_HOLD = """
import sys
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder
from clew.storage.mirror_cache import hold_shard
held = hold_shard(MirrorFolder(sys.argv[1]), eval(sys.argv[2]), None)
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process that holds a shard until it is told to end."""

    def __init__(self, mirror: MirrorFolder, entry: ShardEntry) -> None:
        command = [sys.executable, "-c", _HOLD, str(mirror), repr(entry)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.communicate()


def test_processes_share_downloads_and_respect_each_others_shards(
    url: str, mirror: MirrorFolder, shards: list[ShardEntry], object_server: ObjectServer
) -> None:
    limit(url, mirror, shards, 1.5)
    before = len(object_server.requests)
    holders = [Holder(mirror, shards[0]) for _ in range(2)]
    for holder in holders:
        holder.wait()
    assert count_downloads(object_server, before) == 1
    with pytest.raises(CacheFullError):
        hold_shard(mirror, shards[1], None)
    holders[0].end()
    holders[1].end(kill=True)
    assert (
        hold_shard(mirror, shards[1], None) is not None
    )  # the kernel released what the killed one held


def test_a_download_that_was_killed_is_taken_over(
    mirror: MirrorFolder, folder: Path, shards: list[ShardEntry], object_server: ObjectServer
) -> None:
    with object_server.holding("GET"):
        holder = Holder(mirror, shards[0])
        assert object_server.held.wait(60)
        assert list(mirror.glob(".*.part"))
        holder.end(kill=True)
    held = hold_shard(mirror, shards[0], None)
    assert held is not None
    assert held.path.read_bytes() == (folder / shards[0].file).read_bytes()
    assert not list(mirror.glob(".*.part"))
