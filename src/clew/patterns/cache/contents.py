"""What a cache holds, without its pictures: which file has which row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int32, Int64

from clew.patterns.cache.ledger import OtherFile
from clew.patterns.cache.stamps import join_keys
from clew.storage import StoreReader

_NONE = -1
_STAMP = ("name", "file_bytes", "modified_ns")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Arrays with one entry a row, in the order of the store; 100 bytes or so for each."""

    keys: pa.StringArray
    digests: pa.StringArray
    sizes: Int32[np.ndarray, "rows 2"]  # width and height of the file
    next_id: int  # ids are never used twice, also when rows were lost
    copies: dict[str, str]  # the digests of files that have no row of their own, by key
    faults: dict[str, OtherFile]

    def __len__(self) -> int:
        return len(self.digests)

    def find(self, keys: pa.StringArray) -> Int64[np.ndarray, " files"]:
        """The row that holds each file's picture, -1 where there is none. Of equal pictures it
        is the first, whatever file it came from."""
        digests = pc.take(self.digests, pc.index_in(keys, value_set=self.keys))
        if self.copies:
            copied = [self.copies.get(key) for key in keys.to_pylist()]
            digests = pc.coalesce(digests, pa.array(copied, pa.string()))
        rows = pc.index_in(digests, value_set=self.digests, skip_nulls=True)
        return rows.fill_null(_NONE).to_numpy().astype(np.int64)

    def are_faulty(self, keys: pa.StringArray) -> Bool[np.ndarray, " files"]:
        if not self.faults:
            return np.zeros(len(keys), bool)
        return np.array([key in self.faults for key in keys.to_pylist()], bool)


class _Shard(NamedTuple):
    keys: pa.StringArray
    digests: pa.StringArray
    sizes: Int32[np.ndarray, "rows 2"]
    next_id: int


def read_contents(reader: StoreReader | None, others: Iterable[OtherFile]) -> Contents:
    """Shard by shard; no shard stays mapped. None is a store that was not begun yet."""
    shards = range(0 if reader is None else len(reader.shards))
    parts = [_read_shard(reader, number) for number in shards if reader is not None]
    entries = list(others)
    return Contents(
        keys=_join([part.keys for part in parts]),
        digests=_join([part.digests for part in parts]),
        sizes=np.concatenate([np.zeros((0, 2), np.int32), *(part.sizes for part in parts)]),
        next_id=max((part.next_id for part in parts), default=0),
        copies={entry.key: entry.digest for entry in entries if entry.digest is not None},
        faults={entry.key: entry for entry in entries if entry.digest is None},
    )


def _read_shard(reader: StoreReader, number: int) -> _Shard:
    read = reader.shard(number).read_column
    stamps = zip(*(read(name).chunks for name in _STAMP), strict=True)
    return _Shard(
        keys=_join([join_keys(*columns) for columns in stamps]),
        # A copy: a view would keep the shard mapped, and the pages around it count as ours.
        digests=pa.array(read("digest").to_pylist(), pa.string()),
        sizes=np.stack([read(name).to_numpy() for name in ("width", "height")], axis=1),
        next_id=int(read("global_example_id").to_numpy().max(initial=-1)) + 1,
    )


def _join(arrays: Sequence[pa.Array]) -> pa.StringArray:
    return pa.concat_arrays([pa.array([], pa.string()), *arrays])
