"""The manifest alone describes a store; shards are opened only when needed."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import DiskFullError, StoreError
from clew.hallucination.traces import TraceBatchLoader
from clew.storage.manifest import (
    ShardEntry,
    read_manifest,
    shard_name,
    update_manifest,
    write_manifest,
)
from clew.storage.reader import StoreReader, read_value
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter
from tests.stores import new_manifest, write_store


def test_manifest_round_trips(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", shards=2)
    manifest = read_manifest(store)
    assert (manifest.rows, manifest.planned_rows, manifest.kind) == (24, 24, "samples")
    assert manifest.bytes == sum(p.stat().st_size for p in store.glob("batch_*"))
    write_manifest(store, manifest)
    assert read_manifest(store) == manifest


def test_writer_that_dies_leaves_the_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path / "store")
    before = read_manifest(store)

    def die(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        write_manifest(store, new_manifest())
    assert read_manifest(store) == before


def test_reader_during_a_change_sees_the_complete_old_manifest(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    before = (store / "manifest.json").read_text()
    with (store / "manifest.json").open() as reading:
        write_manifest(store, new_manifest())
        assert reading.read() == before


def test_full_disk_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path / "store")
    before = read_manifest(store)

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFullError, match="is full.*Free some space"):
        update_manifest(store, lambda manifest: replace(manifest, notes=("new",)))
    assert read_manifest(store) == before


def test_200_shards_are_listed_without_opening_one(tmp_path: Path) -> None:
    """None of the files exists: opening one would fail."""
    shards = [
        ShardEntry(batch_number=n, file=shard_name(n), rows=500, bytes=1 << 30, sha256="0" * 64)
        for n in range(200)
    ]
    manifest = replace(new_manifest(100_000), kind="traces", shards=tuple(shards))
    write_manifest(tmp_path, manifest)
    loader = TraceBatchLoader(tmp_path)
    assert (len(loader), loader.total_traces) == (200, 100_000)
    assert loader.get_batch_info()[199]["filename"] == "batch_0199.arrow"
    with pytest.raises(StoreError, match=r"batch_0007.arrow is missing from .*clew.verify"):
        loader.get_batch(7)


def test_few_shards_are_mapped_at_a_time(tmp_path: Path) -> None:
    reader = StoreReader(write_store(tmp_path / "store", shards=12), max_open=4)
    for index in range(12):
        assert reader.shard(index).record_batch(0).num_rows == 4
    mapped = {line.split()[-1] for line in own_maps() if str(tmp_path) in line}
    assert len(mapped) == 4


@pytest.mark.slow
def test_reading_one_row_of_a_big_shard_reads_few_of_its_bytes(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("values", pa.list_(pa.float32()))])
    writer = ShardWriter(tmp_path, 0, schema, id_column="id")
    for start in range(0, 1024, 128):
        values = pa.ListArray.from_arrays(
            pa.array(np.arange(0, 129 * 16_384, 16_384), pa.int32()),
            pa.array(np.repeat(np.arange(start, start + 128, dtype=np.float32), 16_384)),
        )
        ids = pa.array(range(start, start + 128))
        writer.write(pa.RecordBatch.from_arrays([ids, values], schema=schema))
    entry = writer.finish()
    write_manifest(tmp_path, new_manifest())
    add_shard(tmp_path, entry)

    shard = StoreReader(tmp_path).shard(0)
    batch, row = shard.locate("id", 300) or (-1, -1)
    value = read_value(shard.record_batch(batch).column("values"), row)
    assert (value == 300).all()
    assert 0 < resident_bytes(writer.path) < entry.bytes / 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read .*clew.verify"),
        ('{"format": "clew-st', "cannot be read .*clew.verify"),
        ("[]", "is not a clew manifest"),
        ('{"a": 1}', "is not a clew manifest"),
        (
            '{"format": "clew-store", "schema_version": 9}',
            "has schema version 9, but this version of clew reads",
        ),
        ('{"format": "clew-store", "schema_version": 1}', "clew.verify"),
    ],
)
def test_damaged_manifest_is_reported_in_one_sentence(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match=message):
        read_manifest(tmp_path)


def test_folder_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the folder does not exist"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"is not a clew store: it has no manifest.json"):
        read_manifest(tmp_path)
    (tmp_path / "trivia_qa_traces_batch_0000.pkl").touch()
    with pytest.raises(StoreError, match=r"contains legacy files.*convert them.*clew\.convert\("):
        read_manifest(tmp_path)


def own_maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def resident_bytes(path: Path) -> int:
    """How much of a mapped file this process has touched."""
    section = re.compile(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB")
    return sum(int(kb) << 10 for kb in section.findall(Path("/proc/self/smaps").read_text()))
