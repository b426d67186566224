"""The bytes of shards are the same whether mapped, cached or read, and never beyond a
truncation."""

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import StoreError
from clew.storage.files import Located, MappedFiles, ReadFiles, ShardFiles
from clew.storage.reader import StoreReader
from tests.stores import write_store

Opener = Callable[[Path], ShardFiles]


def located(store: Path) -> list[Located]:
    return [(store, shard) for shard in StoreReader(store).shards]


def mapped(store: Path) -> MappedFiles:
    return MappedFiles(located(store))


def cached(store: Path) -> MappedFiles:
    return MappedFiles(located(store), 2)


def read(store: Path) -> ReadFiles:
    return ReadFiles(located(store), 2)


WAYS = [mapped, cached, read]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", shards=6)


def content_of(store: Path, shard: int) -> bytes:
    return (store / f"batch_{shard:04d}.arrow").read_bytes()


@pytest.mark.parametrize("open_files", WAYS)
def test_pieces_are_copied_to_the_requested_places(store: Path, open_files: Opener) -> None:
    files = open_files(store)
    pieces = [(4, 10, 308, 100), (0, 0, 0, 7), (4, 3, 7, 1), (2, 500, 8, 0), (5, 900, 8, 300)]
    out = np.zeros(408, np.uint8)
    files.check({shard for shard, _, _, _ in pieces})
    files.copy(pieces, out)
    for shard, start, place, size in pieces:
        wanted = content_of(store, shard)[start : start + size]
        assert out[place : place + size].tobytes() == wanted
    assert files.view(4, 20, 50).tobytes() == content_of(store, 4)[20:70]


@pytest.mark.parametrize("open_files", [cached, read])
def test_no_more_files_stay_open_than_allowed(store: Path, open_files: Opener) -> None:
    files = open_files(store)
    for shard in (0, 1, 2, 3, 4, 5, 0, 5, 2):
        files.check([shard])
        files.view(shard, 0, 100)
        assert len(held(store)) <= 2
    assert held(store) == {"batch_0005.arrow", "batch_0002.arrow"}
    del files
    assert held(store) == set()


def held(store: Path) -> set[str]:
    """Shards that this process has open or mapped."""
    numbers = os.listdir("/proc/self/fd")
    links = [f"/proc/self/fd/{number}" for number in numbers]
    paths = {os.readlink(link) for link in links if os.path.lexists(link)}
    paths |= {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {Path(path).name for path in paths if path.startswith(str(store))}


def test_mapping_keeps_no_file_open(store: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = mapped(store)
    files.check(range(6))
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(held(store)) == 6


@pytest.mark.parametrize("open_files", WAYS)
def test_truncated_shard_is_detected_before_its_bytes_are_touched(
    store: Path, open_files: Opener
) -> None:
    files = open_files(store)
    files.check([3])
    size = len(files.view(3, 0, 800))
    os.truncate(store / "batch_0003.arrow", 0)
    with pytest.raises(StoreError, match="has 0 bytes, but the manifest says"):
        files.check([3])
        files.copy([(3, 0, 0, size)], np.zeros(size, np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("open_files", WAYS)
def test_missing_shard_is_reported(store: Path, open_files: Opener) -> None:
    files = open_files(store)
    (store / "batch_0001.arrow").unlink()
    with pytest.raises(StoreError, match=r"shard batch_0001\.arrow is missing from"):
        files.check([1])
        files.view(1, 0, 8)


@pytest.mark.parametrize("open_files", WAYS)
def test_another_process_reopens_the_files(store: Path, open_files: Opener) -> None:
    files = open_files(store)
    files.check([0])
    files.view(0, 0, 8)
    other = pickle.loads(pickle.dumps(files))
    other.check([0])
    assert other.view(0, 8, 200).tobytes() == content_of(store, 0)[8:208]


@pytest.mark.parametrize("open_files", WAYS)
def test_threads_share_the_files(store: Path, open_files: Opener) -> None:
    files = open_files(store)
    wrong: list[int] = []

    def read_many(seed: int) -> None:
        for shard in np.random.default_rng(seed).integers(0, 6, 200).tolist():
            files.check([shard])
            if files.view(shard, 64, 400).tobytes() != contents[shard][64:464]:
                wrong.append(shard)

    contents = [content_of(store, shard) for shard in range(6)]
    threads = [threading.Thread(target=read_many, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_writing_to_a_cached_view_changes_no_file(store: Path) -> None:
    before = content_of(store, 0)
    files = cached(store)
    files.check([0])
    files.view(0, 0, 100)[:] = 7
    assert content_of(store, 0) == before
