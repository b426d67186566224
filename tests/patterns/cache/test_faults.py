"""Whatever interrupts caching, repeating the call gives the same cache as an uninterrupted run."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.base.errors import DiskFullError
from clew.base.progress import Event, Reporter, WorkAdvanced
from clew.patterns.cache import store as stores
from clew.patterns.cache.store import LEDGER_NAME, ImageStore
from clew.storage.manifest import read_manifest
from clew.storage.repair import repair_store
from clew.storage.verify import verify_store
from tests import disks
from tests.disks import bytes_in
from tests.patterns.cache.pictures import SIZE, cache, kinds, make_folder, names
from tests.patterns.cache.processes import CachingProcess
from tests.stores import assert_same_store, flip_byte

pytestmark = pytest.mark.slow

PHOTOS, ROWS_PER_SHARD, KILLS = 900, 250, 6
PICTURE_BYTES = SIZE * SIZE * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With copies, contradictions and faulty files among the others."""
    root = make_folder(tmp_path_factory.mktemp("many") / "photos", PHOTOS)
    for number in range(0, PHOTOS, 20):
        original = root / "cats" / f"{number:04d}.png"
        shutil.copy(original, root / "cats" / f"{number:04d} copy.png")
        (root / "dogs" / f"{number:04d} cut.png").write_bytes(original.read_bytes()[:800])
    shutil.copy(root / "cats" / "0002.png", root / "dogs" / "0002.png")
    return root


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_SHARD_BYTES", ROWS_PER_SHARD * PICTURE_BYTES)


@pytest.fixture(scope="module")
def unbroken(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache_dir = tmp_path_factory.mktemp("unbroken") / "cache"
    begin(cache_dir)
    cache(folder, cache_dir)
    return cache_dir


def begin(cache_dir: Path) -> Path:
    """A store of small shards, also for processes that know nothing about them."""
    path = cache_dir / f"{SIZE}px"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "_SHARD_BYTES", ROWS_PER_SHARD * PICTURE_BYTES)
        with ImageStore(path, SIZE).locked():
            return path


def assert_same_cache(folder: Path, found: Path, unbroken: Path) -> None:
    mine, other = cache(folder, found), cache(folder, unbroken)
    assert_same_store(mine.store, other.store)
    assert verify_store(mine.store) == []
    assert names(mine) == names(other)
    assert mine.faults == other.faults
    assert mine.digests == other.digests


@pytest.mark.slow
def test_repeated_kills_give_the_same_cache(folder: Path, unbroken: Path, tmp_path: Path) -> None:
    path, chance, hits = begin(tmp_path / "cache"), random.Random(5), 0
    whole = bytes_in(unbroken / path.name, "batch_*")
    for kill in range(KILLS):
        goal = whole * (kill + chance.random()) / KILLS
        with CachingProcess(folder, tmp_path / "cache", SIZE) as process:
            hits += process.kill_when(lambda goal=goal: bytes_in(path, "batch_*") >= goal)
    assert hits > KILLS // 2
    assert_same_cache(folder, tmp_path / "cache", unbroken)
    assert not [file for file in path.iterdir() if file.suffix in (".part", ".recovered")]


def test_kill_while_the_last_shard_grows_loses_nothing(
    folder: Path, unbroken: Path, tmp_path: Path
) -> None:
    """Existing rows stay; the shard is longer when the kill comes after the rename."""
    path = begin(tmp_path / "cache")
    with CachingProcess(folder, tmp_path / "cache", SIZE) as process:
        process.kill_when(lambda: bytes_in(path, "batch_*") > 0)
    ImageStore(path, SIZE).heal()
    rows = read_manifest(path).rows
    with CachingProcess(folder, tmp_path / "cache", SIZE) as process:
        process.kill_when(lambda: any(path.glob("*.part")))
    assert read_manifest(path).rows >= rows
    assert_same_cache(folder, tmp_path / "cache", unbroken)


def test_kill_before_the_manifest_lists_a_shard_loses_nothing(
    folder: Path, unbroken: Path, tmp_path: Path
) -> None:
    shutil.copytree(unbroken, tmp_path / "cache")
    path = tmp_path / "cache" / f"{SIZE}px"
    last = max(shard.batch_number for shard in read_manifest(path).shards)
    ImageStore(path, SIZE)._forget({last})
    assert_same_cache(folder, tmp_path / "cache", unbroken)


def test_only_photo_of_truncated_ledger_line_is_decoded_again(
    folder: Path, unbroken: Path, tmp_path: Path
) -> None:
    shutil.copytree(unbroken, tmp_path / "cache")
    ledger = tmp_path / "cache" / f"{SIZE}px" / LEDGER_NAME
    ledger.write_bytes(ledger.read_bytes()[:-30])
    assert_same_cache(folder, tmp_path / "cache", unbroken)
    assert len(ledger.read_bytes().splitlines()) == 1 + len(
        (unbroken / f"{SIZE}px" / LEDGER_NAME).read_bytes().splitlines()
    )


@pytest.mark.parametrize("damage", ["cut", "gone", "no ledger"])
def test_damaged_cache_is_restored_from_the_photos(
    folder: Path, unbroken: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(unbroken, tmp_path / "cache")
    path = tmp_path / "cache" / f"{SIZE}px"
    victim = path / "batch_0001.arrow"
    if damage == "cut":
        victim.write_bytes(victim.read_bytes()[:300_000])
    elif damage == "gone":
        victim.unlink()
    else:
        (path / LEDGER_NAME).unlink()
    healed, other = cache(folder, tmp_path / "cache"), cache(folder, unbroken)
    assert (names(healed), healed.digests) == (names(other), other.digests)
    assert healed.faults == other.faults
    assert verify_store(path) == []
    assert read_manifest(path).rows == read_manifest(other.store).rows


def test_rows_dropped_by_repair_are_created_again(
    folder: Path, unbroken: Path, tmp_path: Path
) -> None:
    shutil.copytree(unbroken, tmp_path / "cache")
    path = tmp_path / "cache" / f"{SIZE}px"
    flip_byte(path / "batch_0001.arrow", 200_000)
    problems = verify_store(path)
    assert [problem.kind for problem in problems] == ["damaged"]
    repair_store(path, problems)
    assert verify_store(path) == []
    healed, other = cache(folder, tmp_path / "cache"), cache(folder, unbroken)
    assert (names(healed), healed.digests) == (names(other), other.digests)
    assert read_manifest(path).rows == read_manifest(other.store).rows


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", megabytes=6) as disk:
        yield disk


def fill(disk: Path) -> Reporter:
    """Somebody else fills the disk after the first photos."""

    def report(event: Event) -> None:
        if not isinstance(event, WorkAdvanced):
            return
        with (disk / "somebody elses").open("ab", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    return report


def test_full_disk_stops_caching_and_free_space_resumes_it(
    folder: Path, unbroken: Path, small_disk: Path
) -> None:
    begin(small_disk / "cache")
    with pytest.raises(DiskFullError, match="is full.*Free some space, then run the same"):
        cache(folder, small_disk / "cache", reporter=fill(small_disk))
    with pytest.raises(DiskFullError, match="[Ff]ree some space"):
        cache(folder, small_disk / "cache")
    (small_disk / "somebody elses").unlink()
    assert_same_cache(folder, small_disk / "cache", unbroken)


def test_disk_that_is_too_small_is_refused_in_advance(folder: Path, small_disk: Path) -> None:
    (small_disk / "much").write_bytes(bytes(4 << 20))
    with pytest.raises(
        DiskFullError, match=r"\d+ photos of 32 x 32 pixels require up to [\d.]+ MB, but"
    ):
        cache(folder, small_disk / "cache")
    assert not list((small_disk / "cache").rglob("batch_*"))


def test_all_faulty_files_and_copies_are_reported(folder: Path, unbroken: Path) -> None:
    found = list(kinds(cache(folder, unbroken)).values())
    assert found.count("truncated") == PHOTOS // 20
    assert found.count("duplicate") == PHOTOS // 20
    assert found.count("contradiction") == 2
    assert len(found) == 2 * (PHOTOS // 20) + 2
