"""A shard at a URL, of which only what is asked for is fetched: its footer, headers and offsets
once, then the bytes of some rows or columns, in one round trip."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from clew.base.errors import StoreError
from clew.storage.arrow import (
    ARROW_ERRORS,
    MAGIC,
    BatchHeader,
    Block,
    as_numpy,
    check_batch,
    check_types,
    is_list,
    read_blocks,
    read_header,
)
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder
from clew.storage.origin import ID_COLUMN
from clew.storage.place import Range

# Footer and schema take a few kilobytes; the schema contains the settings of the store.
_END_BYTES = 1 << 16
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


class RangeShard:
    """What `ShardReader` does, without the file. Raises StoreError if the shard is missing or
    damaged, and when the server does not answer."""

    def __init__(self, store: MirrorFolder, entry: ShardEntry) -> None:
        self.path, self.entry = store / entry.file, entry
        self._place = store.place
        self._ids: dict[str, np.ndarray] = {}
        try:
            self.schema, blocks = self._read_ends()
            self._batches = self._read_headers(blocks)
            self._read_metadata()
            self.complete_columns: Collection[str] = ()
        except ARROW_ERRORS as error:
            raise self._explain(error) from None

    @property
    def num_record_batches(self) -> int:
        return len(self._batches)

    @cached_property
    def batch_rows(self) -> list[int]:
        return [next(iter(batch.values())).length if batch else 0 for batch in self._batches]

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Some columns of the whole shard, in one round trip."""
        wanted = [
            (batch, name, 0, rows)
            for batch, rows in zip(self._batches, self.batch_rows, strict=True)
            for name in names
        ]
        arrays = self._read(wanted)
        schema = pa.schema([self.schema.field(name) for name in names])
        batches = [
            pa.RecordBatch.from_arrays(list(islice(arrays, len(names))), schema=schema)
            for _ in self._batches
        ]
        return self._checked(pa.Table.from_batches(batches, schema))

    def read_column(self, name: str) -> pa.ChunkedArray:
        if name not in self.schema.names:
            raise StoreError(
                f'{self.path.name} has no column "{name}": check the store with "clew inspect".'
            )
        return self.read_columns([name]).column(0)

    def count_missing(self, name: str) -> int:
        """The rows of a column that have no value, without a request."""
        found = [plan.valid for plan in self.plans(name)]
        return sum(int((~valid).sum()) for valid in found if valid is not None)

    def read_row(self, batch: int, row: int) -> tuple[pa.RecordBatch, int]:
        """A batch that has only this row, in one round trip, and which of its rows it is."""
        names = self.schema.names
        arrays = self._read([(self._batches[batch], name, row, 1) for name in names])
        return self._checked(pa.RecordBatch.from_arrays(list(arrays), schema=self.schema)), 0

    def plans(self, name: str) -> "list[ArrayPlan]":
        """Where a column lies, record batch by record batch."""
        return [batch[name] for batch in self._batches]

    def read_ids(self, name: str = ID_COLUMN) -> Int64[np.ndarray, " rows"]:
        """See `ShardReader.read_ids`; fetched once."""
        if name not in self._ids:
            column = self.read_column(name)
            if column.type != pa.int64() or column.null_count:
                raise self._explain(ValueError(f'"{name}" has missing values'))
            self._ids[name] = as_numpy(column)
        return self._ids[name]

    def locate(self, column: str, value: int) -> tuple[int, int] | None:
        """(record batch, row in it) of the row whose integer `column` equals `value`."""
        found = np.flatnonzero(self.read_ids(column) == value)
        if not len(found):
            return None
        firsts = np.cumsum([0, *self.batch_rows])
        batch = int(np.searchsorted(firsts, found[0], side="right")) - 1
        return batch, int(found[0] - firsts[batch])

    def _read(
        self, wanted: "Sequence[tuple[dict[str, ArrayPlan], str, int, int]]"
    ) -> Iterator[pa.Array]:
        ranges = [list(batch[name].list_values(first, rows)) for batch, name, first, rows in wanted]
        pieces = iter(self._fetch(list(chain.from_iterable(ranges))))
        for batch, name, first, rows in wanted:
            yield batch[name].build(first, rows, pieces)

    def _checked(self, rows: Rows) -> Rows:
        try:
            check_batch(rows)
            for name in {*self.complete_columns} & {*rows.schema.names}:
                if rows.column(name).null_count:
                    raise ValueError(f'rows have no "{name}"')
        except ARROW_ERRORS as error:
            raise self._explain(error) from None
        return rows

    def _read_ends(self) -> tuple[pa.Schema, list[Block]]:
        size = self.entry.bytes
        length = min(_END_BYTES, size)
        head, tail = self._fetch([(0, length), (size - length, length)])
        blocks = read_blocks(tail, size)
        if isinstance(blocks, int):
            [tail] = self._fetch([(size - blocks, blocks)])
            blocks = read_blocks(tail, size)
        assert not isinstance(blocks, int)
        # The schema ends where the first record batch starts.
        end = min((block.offset for block in blocks), default=size)
        if end > len(head):
            [head] = self._fetch([(0, end)])
        if bytes(head[: len(MAGIC)]) != MAGIC:
            raise ValueError("it is not an Arrow file")
        schema = pa.ipc.read_schema(pa.py_buffer(bytes(head[len(MAGIC) : end])))
        check_types(schema)
        return schema, blocks

    def _read_headers(self, blocks: Sequence[Block]) -> "list[dict[str, ArrayPlan]]":
        headers = self._fetch([(block.offset, block.header_bytes) for block in blocks])
        return [
            plan_arrays(self.schema, read_header(header, block), block.offset + block.header_bytes)
            for header, block in zip(headers, blocks, strict=True)
        ]

    def _read_metadata(self) -> None:
        plans = [plan for batch in self._batches for plan in batch.values()]
        pieces = iter(self._fetch([at for plan in plans for at in plan.list_metadata()]))
        for plan in plans:
            plan.take_metadata(pieces)

    def _fetch(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Empty ones are not asked for."""
        size = self.entry.bytes
        if any(start < 0 or length < 0 or start + length > size for start, length in ranges):
            raise self._explain(ValueError("a header points outside of it"))
        try:
            found = iter(self._place.read_ranges(self.path.name, [one for one in ranges if one[1]]))
        except (FileNotFoundError, EOFError):
            raise StoreError(
                f"shard {self.path.name} is missing from {self.path.parent}, or has fewer than the "
                f"{size:,} bytes that the manifest says",
                action="repair",
                store=self.path.parent,
            ) from None
        return [next(found) if length else memoryview(b"") for _, length in ranges]

    def _explain(self, error: Exception) -> StoreError:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        return StoreError(
            f"shard {self.path.name} in {self.path.parent} cannot be read ({reason})",
            action="repair",
            store=self.path.parent,
        )


@dataclass
class ArrayPlan:
    """One array of a record batch. Ranges count from the beginning of the file; `valid` is None if
    no value is missing, `offsets` if the rows have no lengths of their own."""

    kind: pa.DataType
    length: int
    valid_at: Range | None
    offsets_at: Range | None
    values_at: Range | None
    inner: "ArrayPlan | None"
    valid: Bool[np.ndarray, " rows"] | None = None
    offsets: Int64[np.ndarray, " borders"] | None = None

    @property
    def first_value(self) -> int:
        """Where the values start, of the innermost array."""
        if self.inner is not None:
            return self.inner.first_value
        return self.values_at[0] if self.values_at is not None else 0

    def list_metadata(self) -> Iterator[Range]:
        """What `take_metadata` needs."""
        yield from (at for at in (self.valid_at, self.offsets_at) if at is not None)
        if self.inner is not None:
            yield from self.inner.list_metadata()

    def take_metadata(self, pieces: Iterator[memoryview]) -> None:
        """Raises ValueError if offsets lead outside of what they refer to."""
        if self.valid_at is not None:
            bits = np.unpackbits(np.frombuffer(next(pieces), np.uint8), bitorder="little")
            self.valid = bits[: self.length].astype(bool)
        if self.offsets_at is not None:
            wide = np.int64 if _is_large(self.kind) else np.int32
            self.offsets = np.frombuffer(next(pieces), wide)[: self.length + 1].astype(np.int64)
            self._check_offsets(self.offsets)
        if self.inner is not None:
            self.inner.take_metadata(pieces)

    def _check_offsets(self, offsets: np.ndarray) -> None:
        end = self.inner.length if self.inner is not None else (self.values_at or (0, 0))[1]
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > end or (np.diff(offsets) < 0).any()):
            raise ValueError("offsets point outside their column")

    def list_values(self, first: int, count: int) -> Iterator[Range]:
        """The bytes of `count` rows from row `first`."""
        if self.inner is not None:
            yield from self.inner.list_values(*self._inside(first, count))
        elif self.values_at is not None:
            start, length = self._value_bytes(first, count)
            yield self.values_at[0] + start, length

    def build(self, first: int, count: int, pieces: Iterator[memoryview]) -> pa.Array:
        """The array of these rows, from the bytes of `list_values`."""
        valid = None if self.valid is None else self.valid[first : first + count]
        bits = None if valid is None else _as_buffer(np.packbits(valid, bitorder="little"))
        missing = 0 if valid is None else int(count - valid.sum())
        if pa.types.is_null(self.kind):
            return pa.nulls(count)
        if self.inner is not None:
            children = [self.inner.build(*self._inside(first, count), pieces)]
            buffers = [bits] if self.offsets_at is None else [bits, self._borders(first, count)]
            return pa.Array.from_buffers(self.kind, count, buffers, missing, children=children)
        values = self._take_values(next(pieces), first, count)
        buffers = [bits, values]
        if self.offsets_at is not None:
            buffers = [bits, self._borders(first, count), values]
        return pa.Array.from_buffers(self.kind, count, buffers, missing)

    def _inside(self, first: int, count: int) -> tuple[int, int]:
        """The rows of the inner array that these rows consist of."""
        if self.offsets is None:
            size = self.kind.list_size
            return first * size, count * size
        start, end = self._border(first), self._border(first + count)
        return start, end - start

    def _border(self, row: int) -> int:
        # Arrow may write no offsets for a column without rows.
        return int(self.offsets[row]) if self.offsets is not None and len(self.offsets) else 0

    def _borders(self, first: int, count: int) -> pa.Buffer:
        wide = np.int64 if _is_large(self.kind) else np.int32
        if self.offsets is None or not len(self.offsets):
            return _as_buffer(np.zeros(1, wide))
        borders = self.offsets[first : first + count + 1]
        return _as_buffer((borders - borders[0]).astype(wide))

    def _value_bytes(self, first: int, count: int) -> Range:
        if self.offsets_at is not None:
            start, end = self._border(first), self._border(first + count)
        elif pa.types.is_boolean(self.kind):
            start, end = first // 8, -(-(first + count) // 8)
        else:
            width = self.kind.bit_width // 8
            start, end = first * width, (first + count) * width
        return start, end - start

    def _take_values(self, piece: memoryview, first: int, count: int) -> pa.Buffer:
        """A copy, because pieces of an answer lie at any address, and NumPy wants aligned ones."""
        if not pa.types.is_boolean(self.kind):
            return pa.py_buffer(bytes(piece))
        bits = np.unpackbits(np.frombuffer(piece, np.uint8), bitorder="little")
        return _as_buffer(np.packbits(bits[first % 8 :][:count], bitorder="little"))


def plan_arrays(schema: pa.Schema, header: BatchHeader, base: int) -> dict[str, ArrayPlan]:
    """The columns of a record batch whose values start at byte `base`. Raises ValueError if the
    header does not fit the schema."""
    arrays, buffers = iter(header.arrays), iter(header.buffers)
    try:
        plans = {field.name: _plan(field.type, arrays, buffers, base) for field in schema}
    except StopIteration:
        raise ValueError("a header is damaged") from None
    if any(plan.length != header.rows for plan in plans.values()):
        raise ValueError("its columns differ in length")
    return plans


def _plan(kind: pa.DataType, arrays: Any, buffers: Any, base: int) -> ArrayPlan:
    length, missing = next(arrays)
    if pa.types.is_null(kind):
        return ArrayPlan(kind, length, None, None, None, None)
    start, size = next(buffers)
    valid_at = (base + start, size) if missing else None
    if missing and 8 * size < length:
        raise ValueError("a header is damaged")
    offsets_at = values_at = inner = None
    if _has_offsets(kind):
        start, size = next(buffers)
        offsets_at = (base + start, size)
        if size < (length + 1) * (8 if _is_large(kind) else 4) and length:
            raise ValueError("a header is damaged")
    if is_list(kind):
        inner = _plan(kind.value_type, arrays, buffers, base)
    else:
        start, size = next(buffers)
        values_at = (base + start, size)
    plan = ArrayPlan(kind, length, valid_at, offsets_at, values_at, inner)
    _check_size(plan)
    return plan


def _check_size(plan: ArrayPlan) -> None:
    """What has no offsets must be as long as its rows need."""
    if plan.offsets_at is not None or plan.length < 0:
        return
    if plan.inner is not None:
        fits = plan.inner.length >= plan.length * plan.kind.list_size
    else:
        fits = plan.values_at is None or plan._value_bytes(0, plan.length)[1] <= plan.values_at[1]
    if not fits:
        raise ValueError("a column is shorter than its rows")


def _has_offsets(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or (is_list(kind) and not pa.types.is_fixed_size_list(kind))


def _is_large(kind: pa.DataType) -> bool:
    return pa.types.is_large_list(kind) or pa.types.is_large_string(kind)


def _as_buffer(array: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array))
