"""A shard with wrong lengths inside gives an error, not a crash or an endless wait."""

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from clew.base.errors import StoreError
from clew.storage.arrow import ARROW_ERRORS, read_table
from clew.storage.files import read_layout
from clew.storage.manifest import Manifest, read_manifest
from clew.storage.reader import ShardReader, StoreReader, read_value
from clew.storage.reading import hash_file
from clew.storage.repair import add_shard
from clew.storage.verify import verify_store
from clew.storage.writer import read_intact_batches
from tests.stores import make_rows, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A shard with one record batch of 12 rows."""
    return write_store(tmp_path / "store", shards=1, groups=1)


def edit_header(path: Path, old: int, new: int, size: str = "<q", most: int = 99) -> None:
    """Replaces numbers in the flatbuffer that describes the first record batch."""
    content = path.read_bytes()
    messages = pa.ipc.MessageReader.open_stream(content[8:])
    messages.read_next_message()
    header = messages.read_next_message().metadata.to_pybytes()
    changed = header.replace(struct.pack(size, old), struct.pack(size, new), most)
    assert changed != header
    path.write_bytes(content.replace(header, changed))


def write_offsets(path: Path, column: int, values: list[int]) -> None:
    """Replaces the first offsets of a column, in place."""
    with pa.memory_map(str(path)) as mapped:
        content = mapped.read_buffer()
        buffer = pa.ipc.open_file(content).get_batch(0).column(column).buffers()[1]
        place = buffer.address - content.address
    with path.open("r+b") as file:
        file.seek(place)
        file.write(struct.pack(f"<{len(values)}i", *values))


def rewrite(path: Path, rows: pa.RecordBatch, **options: object) -> None:
    with pa.ipc.new_file(path, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
        file.write_batch(rows)


def as_dictionary(path: Path) -> None:
    rows = make_rows(range(12))
    rewrite(path, rows.set_column(1, "text", rows.column("text").dictionary_encode()))


HOSTILE: dict[str, Callable[[Path], None]] = {
    "2^60 rows": lambda path: edit_header(path, 12, 1 << 60),
    "2^60 rows in the batch only": lambda path: edit_header(path, 12, 1 << 60, most=1),
    "one row too many": lambda path: edit_header(path, 12, 4_000),
    "negative rows": lambda path: edit_header(path, 12, -5),
    "more values than bytes": lambda path: edit_header(path, 144, 1 << 40),
    "buffer beyond the file": lambda path: edit_header(path, 96, 1 << 50),
    "decreasing offsets": lambda path: write_offsets(path, 2, [0, 9, 1]),
    "negative offsets": lambda path: write_offsets(path, 2, [-4, -2, 0]),
    "text offsets beyond the text": lambda path: write_offsets(path, 1, [0, 1 << 30]),
    "text that is not UTF-8": lambda path: path.write_bytes(
        path.read_bytes().replace(b"question 3,", b"question \xff,")
    ),
    "compressed": lambda path: rewrite(path, make_rows(range(12)), compression="zstd"),
    "dictionary": as_dictionary,
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_wrong_lengths_are_an_error_even_if_the_hash_matches(store: Path, damage: str) -> None:
    shard = store / "batch_0000.arrow"
    HOSTILE[damage](shard)
    [entry] = read_manifest(store).shards
    add_shard(store, replace(entry, bytes=shard.stat().st_size, sha256=hash_file(shard)))
    for read in (
        lambda: ShardReader(shard).read_column("tokens").to_pylist(),
        lambda: ShardReader(shard).locate("global_example_id", 3),
        lambda: read_layout(ShardReader(shard), entry.rows, ["states"]),
        lambda: StoreReader(store).shard(0).count_rows(),
    ):
        with pytest.raises(StoreError, match=r"batch_0000.arrow .*: (it was|check|repair)"):
            read()
    with pytest.raises(ARROW_ERRORS):
        read_table(shard)
    assert sum(batch.num_rows for batch in read_intact_batches(shard)) in (0, 12)
    assert [p.kind for p in verify_store(store)] == ["damaged"]


def test_bomb_in_a_compressed_shard_is_not_decompressed(store: Path) -> None:
    shard = store / "batch_0000.arrow"
    rows = pa.record_batch({"global_example_id": pa.repeat(0, 1 << 16)})
    rewrite(shard, rows, compression="zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(StoreError, match="cannot be read"):
        ShardReader(shard).read_ids()
    assert pa.total_allocated_bytes() == before


def test_pipe_in_the_place_of_a_shard_does_not_hang(store: Path) -> None:
    shard = store / "batch_0000.arrow"
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(StoreError, match="is a pipe, not a shard"):
        StoreReader(store).shard(0)
    with pytest.raises(StoreError, match="it is a pipe, not a file"):
        ShardReader(shard)


def test_column_of_another_type_is_not_read_in_place(store: Path) -> None:
    with pytest.raises(StoreError, match='"text" of batch_0000.arrow holds values of type string'):
        read_layout(ShardReader(store / "batch_0000.arrow"), 12, ["text"])


def refuse_texts(schema: pa.Schema, _manifest: Manifest) -> tuple[str, ...]:
    if "text" in schema.names:
        raise ValueError("has a text")
    return ()


def test_columns_are_checked_when_a_shard_is_opened(store: Path) -> None:
    with pytest.raises(StoreError, match="batch_0000.arrow in .* has a text: re-create the store"):
        StoreReader(store, check=refuse_texts).shard(0)


def test_shards_of_one_store_have_the_same_types(tmp_path: Path) -> None:
    store = write_store(tmp_path / "two", shards=2)
    shard = store / "batch_0001.arrow"
    rows = pa.record_batch({"global_example_id": range(12, 24), "text": range(12)})
    rewrite(shard, rows)
    entry = read_manifest(store).shards[1]
    add_shard(store, replace(entry, bytes=shard.stat().st_size))
    reader = StoreReader(store)
    reader.shard(0)
    with pytest.raises(
        StoreError, match=r"has the column 'text' with the type 'int64', but in batch_0000.arrow"
    ):
        reader.shard(1)


def test_two_columns_of_a_name_are_refused(store: Path) -> None:
    shard, ids = store / "batch_0000.arrow", pa.array(range(2))
    rewrite(shard, pa.RecordBatch.from_arrays([ids, ids], names=["global_example_id"] * 2))
    with pytest.raises(StoreError, match="two columns have the same name"):
        ShardReader(shard)


def test_numbers_missing_inside_a_list_are_refused() -> None:
    values = pa.array([[1], [None]])
    assert read_value(values, 0).tolist() == [1]
    with pytest.raises(StoreError, match="1 numbers are missing inside lists"):
        read_value(values, 1)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_table_with_a_dictionary_is_read_unless_it_is_compressed(
    tmp_path: Path, compression: str | None
) -> None:
    names = pa.array(["validation", "test"] * 500).dictionary_encode()
    rows = pa.record_batch({"set": names})
    rewrite(tmp_path / "scores.arrow", rows, compression=compression)
    if compression is None:
        assert read_table(tmp_path / "scores.arrow", dictionaries=True).equals(
            pa.Table.from_batches([rows])
        )
        return
    with pytest.raises(ValueError, match="it is compressed"):
        read_table(tmp_path / "scores.arrow", dictionaries=True)


def test_store_may_be_in_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    store = write_store(tmp_path / os.fsdecode(b"o\xff"), shards=1)
    assert verify_store(store) == []
