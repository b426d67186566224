"""Rows of another store or another shard are never adopted, and never deleted."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from clew.base.errors import StoreError
from clew.storage.manifest import Manifest, read_manifest, update_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.reader import StoreReader
from clew.storage.reading import hash_file
from clew.storage.repair import add_shard, ensure_manifest, repair_store
from clew.storage.verify import verify_store
from clew.storage.writer import ShardWriter
from tests.stores import (
    NOT_FILES,
    SCHEMA,
    assert_same_store,
    forget_shards,
    make_rows,
    new_manifest,
    open_writer,
    write_groups,
    write_store,
)

OTHER: dict[str, Callable[[Manifest], Manifest]] = {
    "settings": lambda m: replace(m, settings={**m.settings, "prompt": {"chat": True}}),
    "kind": lambda m: replace(m, kind="traces"),
    "shard size": lambda m: replace(m, rows_per_shard=13),
    "side file": lambda m: replace(m, files={"basis.arrow": "1" * 64}),
}
REASONS = {
    "settings": r"was written with other settings \(prompt.chat: True, here None\)",
    "kind": """contains 'traces', but the store contains "samples\"""",
    "shard size": r"was written with other settings \(shard_size: 13, here 12\)",
    "side file": "was written with another basis.arrow",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    manifest = replace(new_manifest(36), files={"basis.arrow": "0" * 64})
    return write_store(tmp_path / "store", manifest=manifest)


def problems(store: Path) -> list[tuple[str, str]]:
    """What verify finds, apart from the side file that these stores do not have."""
    return [(p.kind, p.file) for p in verify_store(store) if p.kind != "file"]


def other_store(folder: Path, store: Path, difference: str) -> Path:
    return write_store(folder, manifest=replace(OTHER[difference](read_manifest(store)), shards=()))


@pytest.mark.slow
@pytest.mark.parametrize("difference", OTHER)
@pytest.mark.parametrize("name", ["batch_0002.arrow", "batch_0002.arrow.part"])
def test_unlisted_rows_of_another_store_are_refused_and_moved_aside(
    store: Path, tmp_path: Path, difference: str, name: str
) -> None:
    other = other_store(tmp_path / "other", store, difference) / "batch_0002.arrow"
    forget_shards(store, [2])
    (store / "batch_0002.arrow").unlink()
    shutil.copy(other, store / name)
    with pytest.raises(StoreError, match=REASONS[difference]):
        open_writer(store, 2)
    assert problems(store) == [("foreign", name)]
    repair_store(store)
    assert (store / f"{name}.foreign").read_bytes() == other.read_bytes()
    assert problems(store) == [("gap", "batch_0002.arrow")]
    write_groups(writer := open_writer(store, 2))
    assert writer.recovered_ids == set()
    add_shard(store, writer.finish())
    assert problems(store) == []


@pytest.mark.parametrize("difference", OTHER)
def test_listed_shard_of_another_store_is_found_even_if_its_hash_matches(
    store: Path, tmp_path: Path, difference: str
) -> None:
    """As an earlier version of clew left it after a repair."""
    other = other_store(tmp_path / "other", store, difference)
    shutil.copy(other / "batch_0001.arrow", store)
    entry = read_manifest(other).shard(1)
    assert entry is not None
    add_shard(store, entry)
    with pytest.raises(StoreError, match=REASONS[difference]):
        StoreReader(store).shard(1)
    assert problems(store) == [("foreign", "batch_0001.arrow")]
    [line, *_] = repair_store(store)
    assert line == (
        "moved batch_0001.arrow, which is not part of this store, to batch_0001.arrow.foreign; 12 "
        "rows lost, to be re-created"
    )
    assert problems(store) == [("gap", "batch_0001.arrow")]


@pytest.mark.parametrize("has_number", [True, False], ids=["numbered", "of an earlier version"])
@pytest.mark.parametrize("listed", [True, False])
def test_shard_copied_over_another_is_found(store: Path, has_number: bool, listed: bool) -> None:
    if not has_number:
        rewrite_without_numbers(store)
    shutil.copy(store / "batch_0001.arrow", store / "batch_0000.arrow")
    first, second, *_ = read_manifest(store).shards
    if listed:
        add_shard(store, replace(second, batch_number=0, file=first.file))
    assert problems(store) == [("foreign", "batch_0000.arrow")]
    repair_store(store)
    assert read_manifest(store).rows == 24


def rewrite_without_numbers(store: Path) -> None:
    """Shards as they were before they carried their number."""
    schema = describe_in_schema(SCHEMA, read_manifest(store))
    for shard in read_manifest(store).shards:
        path = store / shard.file
        with pa.ipc.open_file(path) as old:
            batches = [old.get_batch_with_custom_metadata(i) for i in range(3)]
        with pa.ipc.new_file(path, schema) as new:
            for batch, metadata in batches:
                new.write_batch(batch.replace_schema_metadata(None), custom_metadata=metadata)
        size, sha256 = path.stat().st_size, hash_file(path)
        add_shard(store, replace(shard, bytes=size, sha256=sha256))


def test_shards_of_an_earlier_version_are_intact(store: Path) -> None:
    rewrite_without_numbers(store)
    assert problems(store) == []
    forget_shards(store, [2])
    repair_store(store)
    assert problems(store) == []


def test_half_written_rows_outside_their_shard_are_refused(store: Path) -> None:
    update_manifest(store, lambda manifest: replace(manifest, planned_rows=48))
    writer = open_writer(store, 3)
    writer.write(make_rows(range(20, 24)))
    writer.abandon()
    assert problems(store) == [("foreign", "batch_0003.arrow.part")]
    with pytest.raises(StoreError, match=r"has rows 20 to 23, but shard 3 .* rows 36 to 47"):
        open_writer(store, 3)


def test_file_without_an_origin_is_not_adopted(store: Path) -> None:
    forget_shards(store, [2])
    (store / "batch_0002.arrow").unlink()
    ShardWriter(store, 2, SCHEMA, id_column="global_example_id").finish()
    assert problems(store) == [("foreign", "batch_0002.arrow")]
    with pytest.raises(StoreError, match="does not record which store it belongs to"):
        open_writer(store, 2)


def test_rows_that_two_shards_share_are_found(tmp_path: Path) -> None:
    """In a store whose ids do not follow from the number of the shard."""
    manifest = replace(new_manifest(), settings={"size": 16})
    store = write_store(tmp_path / "store", shards=2, manifest=manifest)
    writer = open_writer(store, 2)
    writer.write(make_rows(range(20, 30)))
    add_shard(store, writer.finish())
    [problem] = verify_store(store)
    assert problem.message == (
        "shard batch_0002.arrow has 4 rows that batch_0001.arrow has too: it is not part of this "
        "store"
    )


def test_store_that_does_not_name_its_data_is_known_by_its_date(tmp_path: Path) -> None:
    mine = replace(new_manifest(), settings={"size": 16})
    store = write_store(tmp_path / "store", shards=1, manifest=mine)
    yours = replace(mine, created="2020-01-01T00:00:00+00:00")
    other = write_store(tmp_path / "other", shards=2, manifest=yours)
    shutil.copy(other / "batch_0001.arrow", store)
    [problem] = verify_store(store)
    assert "was written for a store created on 2020-01-01" in problem.message


def test_lost_manifest_is_rebuilt_from_the_shards_that_are_most(
    store: Path, tmp_path: Path
) -> None:
    before = read_manifest(store)
    other = other_store(tmp_path / "other", store, "settings")
    shutil.copy(other / "batch_0000.arrow", store)
    (store / "manifest.json").unlink()
    assert ensure_manifest(store) is not None
    assert read_manifest(store) == replace(before, shards=())
    assert ("foreign", "batch_0000.arrow") in problems(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["batch_0001.arrow", "batch_0003.arrow.part", "batch_0000.arrow.recovered"]
)
@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_not_a_file_is_moved_aside(tmp_path: Path, kind: str, name: str) -> None:
    store, mine = write_store(tmp_path / "store"), tmp_path / "mine"
    mine.mkdir()
    (store / name).unlink(missing_ok=True)
    NOT_FILES[kind](store / name, mine)
    assert [(p.kind, p.file) for p in verify_store(store)] == [("foreign", name)]
    repair_store(store)
    assert os.path.lexists(store / f"{name}.foreign") and mine.is_dir()
    if name == "batch_0001.arrow":
        write_groups(writer := open_writer(store, 1))
        add_shard(store, writer.finish())
    assert verify_store(store) == []
    assert_same_store(store, write_store(tmp_path / "unharmed"))


def test_earlier_files_moved_aside_are_kept(store: Path) -> None:
    (store / "batch_0001.arrow.part.foreign").write_bytes(b"mine")
    (store / "batch_0001.arrow.part").mkdir()
    repair_store(store)
    assert (store / "batch_0001.arrow.part.foreign").read_bytes() == b"mine"
    assert (store / "batch_0001.arrow.part.foreign-2").is_dir()


def test_damaged_shard_does_not_replace_a_half_written_one(store: Path) -> None:
    writer = open_writer(store, 1)
    writer.abandon()
    part = (store / "batch_0001.arrow.part").read_bytes()
    shard = store / "batch_0001.arrow"
    shard.write_bytes(shard.read_bytes()[:-9])
    repair_store(store)
    assert (store / "batch_0001.arrow.part").read_bytes() == part
    writer = open_writer(store, 1)
    assert writer.recovered_ids == set(range(12, 24))
    writer.abandon()


def test_linked_shard_is_read_but_never_written_through(tmp_path: Path) -> None:
    store, cache = write_store(tmp_path / "store"), tmp_path / "cached.arrow"
    shard = store / "batch_0001.arrow"
    shard.rename(cache)
    shard.symlink_to(cache)
    assert verify_store(store) == []
    whole = cache.read_bytes()
    cache.write_bytes(whole[:-9])
    [line] = repair_store(store)
    assert line.startswith("rewrote batch_0001.arrow with its 12 intact rows")
    assert cache.read_bytes() == whole[:-9] and not shard.is_symlink()
    assert verify_store(store) == []


@pytest.mark.parametrize("end", ["part", "recovered"])
def test_leftover_beside_a_complete_shard_is_moved_aside(tmp_path: Path, end: str) -> None:
    store = write_store(tmp_path / "store")
    left = store / f"batch_0001.arrow.{end}"
    left.touch()
    [problem] = verify_store(store)
    assert problem.message == f"{left.name} is left over: shard batch_0001.arrow is complete"
    repair_store(store)
    assert verify_store(store) == [] and not left.exists()
