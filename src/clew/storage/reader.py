"""Read shards by mapping them into memory: opening costs a footer, a row costs its own bytes."""

import errno
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.errors import StoreError, TooManyFilesError
from clew.storage.manifest import Manifest, read_manifest


class ShardReader:
    """One mapped shard. Record batches are opened when first touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._map = pa.memory_map(str(path))
            self._file = pa.ipc.open_file(self._map)
        except FileNotFoundError:
            raise StoreError(
                f"shard {path.name} is missing from {path.parent}: restore the file, or run "
                f'"clew verify --repair {path.parent}" and then the command that made it.'
            ) from None
        except (pa.ArrowInvalid, OSError) as error:
            raise _explain(path, error) from None
        self._batches: list[pa.RecordBatch | None] = [None] * self._file.num_record_batches
        self._row_of_id: np.ndarray | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema

    def whole_file(self) -> pa.Buffer:
        """The mapped file; it stays mapped as long as the buffer, or a view of it, lives."""
        self._map.seek(0)
        return self._map.read_buffer()

    def close(self) -> None:
        """Give the file back; what was read of it stays mapped."""
        self._map.close()

    @property
    def num_record_batches(self) -> int:
        return self._file.num_record_batches

    def record_batch(self, index: int) -> pa.RecordBatch:
        batch = self._batches[index]
        if batch is None:
            batch = self._batches[index] = self._file.get_batch(index)
        return batch

    def count_rows(self) -> int:
        return sum(self.record_batch(i).num_rows for i in range(self.num_record_batches))

    def read_column(self, name: str) -> pa.ChunkedArray:
        """One column of the whole shard, without copying; only its own pages are read."""
        if name not in self.schema.names:
            raise StoreError(f'{self.path.name} has no column "{name}".')
        chunks = [self.record_batch(i).column(name) for i in range(self.num_record_batches)]
        return pa.chunked_array(chunks, type=self.schema.field(name).type)

    def locate(self, column: str, value: int) -> tuple[int, int] | None:
        """(record batch, row in it) of the row whose integer `column` equals `value`."""
        if self._row_of_id is None:
            rows = [
                np.stack([ids, np.full(len(ids), i), np.arange(len(ids))], axis=1)
                for i in range(self.num_record_batches)
                for ids in [self.record_batch(i).column(column).to_numpy()]
            ]
            table = np.concatenate(rows) if rows else np.zeros((0, 3), np.int64)
            self._row_of_id = table[np.argsort(table[:, 0], kind="stable")]
        at = int(np.searchsorted(self._row_of_id[:, 0], value))
        if at == len(self._row_of_id) or self._row_of_id[at, 0] != value:
            return None
        return int(self._row_of_id[at, 1]), int(self._row_of_id[at, 2])


class StoreReader:
    """A store's manifest and its shards; at most `max_open` shards are mapped at a time."""

    def __init__(self, store: str | Path, max_open: int = 64) -> None:
        self.path = Path(store)
        self.manifest: Manifest = read_manifest(self.path)
        self.shards = sorted(self.manifest.shards, key=lambda shard: shard.batch_number)
        self._max_open = max_open
        self._open: OrderedDict[int, ShardReader] = OrderedDict()

    def shard(self, index: int) -> ShardReader:
        """The reader of the index-th finished shard."""
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        reader = ShardReader(self.path / self.shards[index].file)
        self._open[index] = reader
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)
        return reader


def _explain(path: Path, error: Exception) -> StoreError:
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        return too_many_files(path)
    reason = str(error).splitlines()[0]
    return StoreError(
        f'shard {path.name} cannot be read ({reason}): run "clew verify {path.parent}".'
    )


def too_many_files(path: Path) -> TooManyFilesError:
    """The sentence for a process that has reached its limit of open files."""
    return TooManyFilesError(
        f"{path.name} cannot be opened: too many open files. Raise the limit of this process "
        f'("ulimit -n 4096"), or use fewer workers.'
    )


def read_value(array: pa.Array, row: int) -> Any:
    """One row of a column: text and numbers as Python values, lists of numbers as a flat,
    zero-copy numpy array, lists of strings as a list; a missing value as None."""
    one = array.slice(row, 1)
    if one.null_count:
        return None
    kind = array.type
    if not is_list(kind):
        return one[0].as_py()
    while is_list(one.type):
        one = one.flatten()
    if pa.types.is_string(one.type):
        return one.to_pylist()
    return one.to_numpy(zero_copy_only=True)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
