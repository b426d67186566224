"""The columns of a store of samples, each read by itself, for some rows, and nothing kept.

Values come from the files piece by piece: mapped pages would count as the process's memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.errors import InputError, StoreError
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex
from clew.storage import ShardReader, StoreReader
from clew.storage.layout import check_size
from clew.storage.reader import is_list

_READ_BYTES = 16 << 20
_OPEN_FILES = 16


class StoredFields:
    """Reads columns of a store whose samples are those of `index`."""

    def __init__(self, path: Path, index: SampleIndex) -> None:
        self.store, self._index = StoreReader(path), index
        if not self.store.shards:
            raise StoreError(f"{path} holds no samples yet: run the command that fills it again.")
        for shard in self.store.shards:  # a long comparison would find it out at its end
            check_size(path / shard.file, shard.bytes)
        self._schema = self._open(0).schema
        self._readers: dict[str, SampleReader] = {}

    @property
    def names(self) -> list[str]:
        return self._schema.names

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of one answer's values; () for ragged ones, single ones and text."""
        kind, shape = self._schema.field(name).type, []
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        return tuple(shape)

    def read(self, name: str, rows: Rows, layer: int | None) -> Any:
        """As `AnswerFeatures.read` says."""
        kind, shape = self._schema.field(name).type, self.shape_of(name)
        if layer is not None and (len(shape) < 2 or not 0 <= layer < shape[0]):
            has = f"its layers are 0 to {shape[0] - 1}" if len(shape) > 1 else "it has no layers"
            raise InputError(f'layer {layer} of "{name}" was asked for: {has}.')
        if pa.types.is_string(kind.value_type if is_list(kind) else kind):
            texts = [text for chunk in self._chunks(name) for text in chunk.to_pylist()]
            return [texts[row] for row in rows.tolist()]
        if shape:
            return self._read_fixed(name, rows, layer)
        return self._read_ragged(name, rows) if is_list(kind) else self._read_single(name, rows)

    def count_bytes(self, name: str) -> int:
        return sum(chunk.nbytes for chunk in self._chunks(name))

    def _read_fixed(self, name: str, rows: Rows, layer: int | None) -> np.ndarray:
        reader = self._reader(name)
        shape, dtype = reader.columns[name].item_shape, reader.columns[name].dtype
        first, size = 0, reader.columns[name].item_bytes
        if layer is not None:
            shape, size = shape[1:], size // shape[0]
            first = layer * size
        out = np.empty((len(rows), *shape), np.float32)
        at_once = max(1, _READ_BYTES // size)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            content = _copy_pieces(reader, name, some, first, size)
            out[start : start + at_once] = content.view(dtype).reshape(len(some), *shape)
        return out

    def _read_ragged(self, name: str, rows: Rows) -> list[np.ndarray]:
        reader = self._reader(name)
        values = reader.read_rows(name, rows, reader.locate(rows))
        return [value.astype(np.float32, copy=False) for value in values]

    def _read_single(self, name: str, rows: Rows) -> np.ndarray:
        parts = [chunk.to_numpy(zero_copy_only=False) for chunk in self._chunks(name)]
        return np.concatenate(parts).astype(np.float32)[rows]

    def _reader(self, name: str) -> SampleReader:
        """Kept: where the values lie is looked up once, though every layer is read by itself."""
        if name not in self._readers:
            self._readers[name] = SampleReader(
                self.store.path,
                (name,),
                ids=self._index.example_ids,
                questions=self._index.question_ids,
                access="read",
                max_open=_OPEN_FILES,
            )
        return self._readers[name]

    def _chunks(self, name: str) -> Iterator[pa.Array]:
        """A small column; no shard stays mapped."""
        for shard in range(len(self.store.shards)):
            yield from self._open(shard).read_column(name).chunks

    def _open(self, shard: int) -> ShardReader:
        return ShardReader(self.store.path / self.store.shards[shard].file)


def _copy_pieces(reader: SampleReader, name: str, rows: Rows, first: int, size: int) -> np.ndarray:
    """`size` bytes of every row, from its byte `first` on."""
    content = np.empty(len(rows) * size, np.uint8)
    shards, starts = reader.locate(rows), reader.columns[name].starts[rows] + first
    places = np.arange(len(rows)) * size
    pieces = np.stack([shards, starts, places, np.full(len(rows), size)], axis=1)
    reader.files.copy(pieces.tolist(), content)
    return content
