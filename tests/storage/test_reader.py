"""Where values lie in a shard's file: the bytes at those offsets are what Arrow reads."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import StoreError
from clew.storage.files import ShardLayout, read_layout
from clew.storage.manifest import ShardEntry
from clew.storage.reader import ShardReader, StoreReader, open_shard, read_value
from tests.stores import write_store


def layout_of(store: Path, entry: ShardEntry, columns: list[str]) -> ShardLayout:
    return read_layout(open_shard(store, entry), entry.rows, columns)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three shards of twelve rows in three record batches each."""
    return write_store(tmp_path / "store")


@pytest.mark.parametrize("column", ["states", "tokens", "global_example_id"])
def test_bytes_at_the_offsets_are_the_values(store: Path, column: str) -> None:
    for entry in StoreReader(store).shards:
        layout = layout_of(store, entry, [column])
        content = (store / entry.file).read_bytes()
        place = layout.columns[column]
        for row, value in enumerate(values_of(store / entry.file, column)):
            size = int(place.counts[row]) * place.item_bytes
            start = int(place.starts[row])
            found = np.frombuffer(content[start : start + size], place.dtype)
            np.testing.assert_array_equal(found, np.ravel(value), strict=True)
        first = entry.batch_number * 12
        assert layout.ids.tolist() == list(range(first, first + 12))


def values_of(shard: Path, column: str) -> list[np.ndarray]:
    reader = ShardReader(shard)
    batches = [reader.record_batch(index) for index in range(reader.num_record_batches)]
    return [np.asarray(read_value(b.column(column), r)) for b in batches for r in range(len(b))]


def test_shapes_follow_the_column_types(store: Path) -> None:
    layout = layout_of(store, StoreReader(store).shards[0], ["states", "tokens"])
    states, tokens = layout.columns["states"], layout.columns["tokens"]
    assert (states.item_shape, states.dtype, states.item_bytes) == ((3, 4), np.float16, 24)
    assert (tokens.item_shape, tokens.dtype, tokens.item_bytes) == ((), np.int32, 4)
    assert set(states.counts) == {1}
    assert tokens.counts.tolist() == [row % 5 for row in range(12)]


@pytest.mark.parametrize("wide", [pa.list_, pa.large_list])
def test_ragged_rows_of_vectors_are_read(tmp_path: Path, wide: object) -> None:
    kind = wide(pa.list_(pa.float16(), 2))  # type: ignore[operator]
    rows = [[[1, 2], [3, 4]], [], [[5, 6]]]
    entry = write_shard(tmp_path, [rows, [[[7, 8]]]], kind)
    place = layout_of(tmp_path, entry, ["values"]).columns["values"]
    content = (tmp_path / entry.file).read_bytes()
    assert place.counts.tolist() == [2, 0, 1, 1]
    assert place.item_shape == (2,)
    for row, expected in enumerate([*rows, [[7, 8]]]):
        size = int(place.counts[row]) * place.item_bytes
        start = int(place.starts[row])
        found = np.frombuffer(content[start : start + size], np.float16).reshape(-1, 2)
        assert found.tolist() == expected


def test_record_batch_without_rows_is_read(tmp_path: Path) -> None:
    entry = write_shard(tmp_path, [[[1, 2]], [], [[3]]], pa.list_(pa.int32()))
    place = layout_of(tmp_path, entry, ["values"]).columns["values"]
    assert place.counts.tolist() == [2, 1]


def test_compressed_shards_are_refused(tmp_path: Path) -> None:
    """Other programs may write such files; their values cannot be read in place."""
    entry = write_shard(tmp_path, [[[1, 2]] * 999], pa.list_(pa.int32()), compression="zstd")
    with pytest.raises(StoreError, match="compressed"):
        layout_of(tmp_path, entry, ["values"])


def test_column_with_nulls_or_missing_column_is_refused(tmp_path: Path) -> None:
    entry = write_shard(tmp_path, [[[1], None, None]], pa.list_(pa.int32()))
    with pytest.raises(StoreError, match='no "values" in 2 rows of batch_0000.arrow'):
        layout_of(tmp_path, entry, ["values"])
    with pytest.raises(StoreError, match='batch_0000.arrow has no column "color"'):
        layout_of(tmp_path, entry, ["color"])


def test_shard_that_contradicts_the_manifest_is_refused(store: Path) -> None:
    entry = StoreReader(store).shards[1]
    with pytest.raises(StoreError, match="has 12 rows, but the manifest says 13: repair the store"):
        layout_of(store, replace(entry, rows=13), ["states"])
    os.truncate(store / entry.file, 100)
    with pytest.raises(
        StoreError, match=r"has 100 bytes, but the manifest says [\d,]+: it was truncated"
    ):
        layout_of(store, entry, ["states"])
    (store / entry.file).unlink()
    with pytest.raises(StoreError, match=r"batch_0001.arrow is missing from .*restore the file"):
        layout_of(store, entry, ["states"])


def write_shard(
    folder: Path, batches: list[Any], kind: pa.DataType, compression: str | None = None
) -> ShardEntry:
    """A shard as another program may write it, and its entry."""
    schema = pa.schema([("global_example_id", pa.int64()), ("values", kind)])
    path = folder / "batch_0000.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), schema, options=options) as writer:
        for rows in batches:
            ids = pa.array(range(len(rows)), pa.int64())
            writer.write(pa.RecordBatch.from_arrays([ids, pa.array(rows, kind)], schema=schema))
    total = sum(map(len, batches))
    return ShardEntry(
        batch_number=0, file=path.name, rows=total, bytes=path.stat().st_size, sha256=""
    )
