"""Where the values of a column lie in a shard's file, row by row.

Arrow writes the values of a list column one after the other, uncompressed. Once their places are
known, a row is one copy from the file: no Arrow object and no Python value is made for it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.errors import StoreError
from clew.storage.manifest import ShardEntry
from clew.storage.reader import ShardReader, is_list


@dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """One column of one shard: row r holds `counts[r]` items of `item_shape`, from `starts[r]`."""

    dtype: np.dtype
    item_shape: tuple[int, ...]
    starts: Int64[np.ndarray, " rows"]  # in bytes from the beginning of the file
    counts: Int64[np.ndarray, " rows"]  # 1 in a column whose rows are all of one size

    @property
    def item_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.item_shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Which rows a shard holds, and where the wanted columns of them lie."""

    ids: Int64[np.ndarray, " rows"]
    questions: list[str] | None  # None in a store that has none
    columns: dict[str, ColumnLayout]


def read_layout(store: Path, entry: ShardEntry, columns: Sequence[str]) -> ShardLayout:
    """Read a shard's footer and offsets; the values themselves stay on the disk.

    Raises StoreError when the shard is missing, cut, or lacks a column.
    """
    path = store / entry.file
    check_size(path, entry.bytes)
    reader = ShardReader(path)
    base = reader.whole_file().address
    batches = [reader.record_batch(index) for index in range(reader.num_record_batches)]
    ids = [batch.column("global_example_id").to_numpy() for batch in batches]
    layout = ShardLayout(
        ids=np.concatenate(ids) if ids else np.zeros(0, np.int64),
        questions=_read_questions(reader),
        columns={name: _locate_column(reader, batches, name, base) for name in columns},
    )
    if len(layout.ids) != entry.rows:
        raise StoreError(
            f"shard {entry.file} has {len(layout.ids):,} rows, the manifest says {entry.rows:,}: "
            f'run "clew verify --repair {store}".'
        )
    return layout


def check_size(file: str | Path, expected: int) -> None:
    """Raises StoreError when a shard is gone or has another size than it was written with."""
    try:
        found = os.stat(file).st_size
    except FileNotFoundError:
        found = -1
    if found == expected:
        return
    path = Path(file)
    if found < 0:
        raise StoreError(
            f"shard {path.name} is gone from {path.parent}: restore the file, or run "
            f'"clew verify --repair {path.parent}" and then the command that made it.'
        )
    raise StoreError(
        f"shard {path.name} in {path.parent} has {found:,} bytes, the manifest says "
        f'{expected:,}: it was cut or replaced. Run "clew verify --repair {path.parent}".'
    )


def _read_questions(reader: ShardReader) -> list[str] | None:
    if "question_id" not in reader.schema.names:
        return None
    return reader.read_column("question_id").to_pylist()


def _locate_column(
    reader: ShardReader, batches: Sequence[pa.RecordBatch], name: str, base: int
) -> ColumnLayout:
    if name not in reader.schema.names:
        raise StoreError(
            f'{reader.path} has no column "{name}": make the samples again from their traces, '
            f'with "clew preprocess".'
        )
    kind = reader.schema.field(name).type
    shape, dtype = _item_of(kind)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    places = []
    for batch in batches:
        column = batch.column(name)
        if column.null_count:
            raise StoreError(
                f'{column.null_count:,} rows of {reader.path.name} have no "{name}": this store '
                f"cannot be trained on. Make it again from traces that have it."
            )
        first, count = _locate_rows(column, size, base)
        if len(first) and not 0 <= first[0] <= first[-1] <= len(reader.whole_file()):
            raise StoreError(
                f"{reader.path.name} is compressed: its values cannot be taken from the file as "
                f"they are. Write it without compression."
            )
        places.append((first, count))
    starts = [start for start, _ in places] or [np.zeros(0, np.int64)]
    counts = [count for _, count in places] or [np.zeros(0, np.int64)]
    return ColumnLayout(
        dtype=dtype,
        item_shape=shape,
        starts=np.concatenate(starts),
        counts=np.concatenate(counts),
    )


def _is_ragged(kind: pa.DataType) -> bool:
    return is_list(kind) and not pa.types.is_fixed_size_list(kind)


def _item_of(kind: pa.DataType) -> tuple[tuple[int, ...], np.dtype]:
    """What a row consists of: the list's items when it is ragged, else the whole row."""
    if _is_ragged(kind):
        kind = kind.value_type
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return tuple(shape), np.dtype(kind.to_pandas_dtype())


def _locate_rows(column: pa.Array, item_bytes: int, base: int) -> tuple[np.ndarray, np.ndarray]:
    """The first byte of each row in the file, and how many items it has."""
    buffers = column.buffers()
    values = buffers[-1]
    # Without a value in any row, the buffer lies nowhere in the file.
    first = values.address - base if values is not None and values.size else 0
    if _is_ragged(column.type):
        wide = np.int64 if pa.types.is_large_list(column.type) else np.int32
        items = np.frombuffer(buffers[1], wide, len(column) + 1).astype(np.int64)
    else:
        items = np.arange(len(column) + 1, dtype=np.int64)
    return first + items[:-1] * item_bytes, np.diff(items)
