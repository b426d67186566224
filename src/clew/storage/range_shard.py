"""A shard at a URL, of which only what is asked for is fetched: its footer, headers and offsets
once, then the bytes of some rows or columns, in one round trip."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.base.errors import StoreError
from clew.storage.array_parts import ArrayPlan, plan_arrays
from clew.storage.arrow import (
    ARROW_ERRORS,
    MAGIC,
    Block,
    as_numpy,
    check_batch,
    check_types,
    read_blocks,
    read_header,
)
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder
from clew.storage.origin import ID_COLUMN
from clew.storage.places import Range

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

    def plans(self, name: str) -> list[ArrayPlan]:
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
        self, wanted: Sequence[tuple[dict[str, ArrayPlan], str, int, int]]
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

    def _read_headers(self, blocks: Sequence[Block]) -> list[dict[str, ArrayPlan]]:
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
