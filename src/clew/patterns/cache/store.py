"""The store of decoded photos: its rows, and how it is created, repaired and extended.

A row is one image: the square itself, a digest of it, and the file in which it was first seen.
"""

from pathlib import Path

import pyarrow as pa

from clew.patterns.cache.contents import Contents, Ledger, read_contents
from clew.patterns.cache.rows import ID, RowStore
from clew.storage import read_manifest

KIND = "photos"
CHANNELS = 3
_ADVICE = "Free some space and run the same command again, or choose a smaller `image_size`."
# Changes when photos are turned into squares differently: old squares would not match new ones.
_METHOD = "whole photo, squashed"


def image_bytes(size: int) -> int:
    return size * size * CHANNELS


def image_schema(size: int) -> pa.Schema:
    numbers = {"file_bytes": pa.int64(), "modified_ns": pa.int64()}
    sides = {"width": pa.int32(), "height": pa.int32()}
    columns = {ID: pa.int64(), "name": pa.string(), **numbers, "digest": pa.string(), **sides}
    columns["image"] = pa.list_(pa.uint8(), image_bytes(size))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


class ImageStore(RowStore):
    """The store of one size."""

    def __init__(self, path: Path, size: int, cache_dir: Path | None = None) -> None:
        super().__init__(
            path,
            image_schema(size),
            kind=KIND,
            identity={"size": size, "method": _METHOD},
            row_bytes=image_bytes(size),
            work="read the photos",
            advice=_ADVICE,
            cache_dir=cache_dir,
        )
        self.size = size
        self.ledger = Ledger(path)

    def read(self) -> Contents:
        """Read the contents of the store. Raises StoreError if the folder holds something else."""
        if not self.exists():
            return read_contents(None, ())
        self.refuse_other(read_manifest(self.path))
        return read_contents(self.open_reader(), self.ledger.read())
