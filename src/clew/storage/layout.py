"""Where the values of a column lie in its file. Arrow writes the values of a list column
contiguously and uncompressed. Once their offsets are known, reading a row is a single copy from the
file, without any Arrow or Python objects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.base.errors import StoreError
from clew.base.texts import counted
from clew.storage.arrow import is_list
from clew.storage.range_shard import RangeShard
from clew.storage.reader import ShardReader


@dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """One column of one shard: row r holds `counts[r]` items of `item_shape`, from `starts[r]`."""

    dtype: np.dtype
    item_shape: tuple[int, ...]
    starts: Int64[np.ndarray, " rows"]  # in bytes from the beginning of the file
    counts: Int64[np.ndarray, " rows"]  # 1 in a column whose rows all have the same size

    @property
    def item_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.item_shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """The rows of a shard, and where the requested columns lie in its file."""

    ids: Int64[np.ndarray, " rows"]
    questions: list[str] | None  # None in a store that has none
    columns: dict[str, ColumnLayout]


Shard = ShardReader | RangeShard
# The first byte of each row, and its number of items.
_Rows = tuple[np.ndarray, np.ndarray]


def read_layout(reader: Shard, rows: int, columns: Sequence[str]) -> ShardLayout:
    """Reads a shard's offsets; the values themselves stay where they are. Raises StoreError when
    the shard does not have as many rows as the manifest says, or lacks a column."""
    layout = ShardLayout(
        ids=reader.read_ids(),
        questions=_read_questions(reader),
        columns={name: _locate_column(reader, name) for name in columns},
    )
    if len(layout.ids) != rows:
        raise StoreError(
            f"shard {reader.path.name} has {len(layout.ids):,} rows, "
            f"but the manifest says {rows:,}",
            action="repair",
            store=reader.path.parent,
        )
    return layout


def _read_questions(reader: Shard) -> list[str] | None:
    if "question_id" not in reader.schema.names:
        return None
    return reader.read_column("question_id").to_pylist()


def _locate_column(reader: Shard, name: str) -> ColumnLayout:
    if name not in reader.schema.names:
        raise StoreError(
            f'{reader.path} has no column "{name}": re-create the samples from their traces with '
            '"clew preprocess".'
        )
    shape, dtype = _item_of(reader, name)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if isinstance(reader, RangeShard):
        places = list(_locate_there(reader, name, size))
    else:
        places = list(_locate_here(reader, name, size))
    starts = [start for start, _ in places] or [np.zeros(0, np.int64)]
    counts = [count for _, count in places] or [np.zeros(0, np.int64)]
    return ColumnLayout(
        dtype=dtype,
        item_shape=shape,
        starts=np.concatenate(starts),
        counts=np.concatenate(counts),
    )


def _locate_here(reader: ShardReader, name: str, size: int) -> Iterator[_Rows]:
    base = reader.whole_file().address
    for index in range(reader.num_record_batches):
        column = reader.record_batch(index).column(name)
        _refuse_missing(reader, name, column.null_count)
        yield _locate_rows(column, size, base)


def _locate_there(reader: RangeShard, name: str, size: int) -> Iterator[_Rows]:
    for plan in reader.plans(name):
        _refuse_missing(reader, name, 0 if plan.valid is None else int((~plan.valid).sum()))
        items = np.arange(plan.length + 1) if plan.offsets is None else plan.offsets
        yield plan.first_value + items[:-1] * size, np.diff(items)


def _refuse_missing(reader: Shard, name: str, count: int) -> None:
    if count:
        raise StoreError(
            f'no "{name}" in {counted(count, "row")} of {reader.path.name}: this store cannot be '
            "used for training. Re-create it from traces that have that field."
        )


def _is_ragged(kind: pa.DataType) -> bool:
    return is_list(kind) and not pa.types.is_fixed_size_list(kind)


def _item_of(reader: Shard, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """What a row consists of: the list's items when it is ragged, else the whole row."""
    kind = reader.schema.field(name).type
    if _is_ragged(kind):
        kind = kind.value_type
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise StoreError(
            f'the column "{name}" of {reader.path.name} holds values of type {kind}, not numbers '
            "that can be read in place",
            action="repair",
            store=reader.path.parent,
        )
    return tuple(shape), np.dtype(kind.to_pandas_dtype())


def _locate_rows(column: pa.Array, item_bytes: int, base: int) -> _Rows:
    """The first byte of each row in the file, and the number of items in it."""
    buffers = column.buffers()
    values = buffers[-1]
    # When every row is empty, the buffer lies nowhere in the file.
    first = values.address - base if values is not None and values.size else 0
    if _is_ragged(column.type):
        wide = np.int64 if pa.types.is_large_list(column.type) else np.int32
        items = np.frombuffer(buffers[1], wide, len(column) + 1).astype(np.int64)
    else:
        items = np.arange(len(column) + 1, dtype=np.int64)
    return first + items[:-1] * item_bytes, np.diff(items)
