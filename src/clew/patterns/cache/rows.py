"""Decoded photos as rows of the store; a picture that is there already gets no second row."""

import numpy as np
import pyarrow as pa

from clew.patterns.cache.contents import Contents
from clew.patterns.cache.squares import Squares
from clew.patterns.cache.stamps import Stamps
from clew.patterns.cache.store import image_bytes, image_schema


class SeenPictures:
    """The digests of all pictures so far, and the id of the next row."""

    def __init__(self, contents: Contents) -> None:
        self._digests = set(contents.digests.to_pylist())
        self._next_id = contents.next_id

    def is_new(self, digest: str | None) -> bool:
        """True once for each picture; None is no picture."""
        if digest is None or digest in self._digests:
            return False
        self._digests.add(digest)
        return True

    def take_ids(self, count: int) -> np.ndarray:
        self._next_id += count
        return np.arange(self._next_id - count, self._next_id)


def build_rows(squares: Squares, stamps: Stamps, seen: SeenPictures, size: int) -> pa.RecordBatch:
    """The pictures that were not seen before, with the stamps of their files."""
    digests = squares.digests
    places = [place for place, digest in enumerate(digests) if seen.is_new(digest)]
    files = stamps.take(places)
    pixels = squares.images[places].reshape(-1)
    columns = [
        pa.array(seen.take_ids(len(places))),
        files.names,
        pa.array(files.file_bytes),
        pa.array(files.modified_ns),
        pa.array([digests[place] for place in places], pa.string()),
        *(pa.array(np.ascontiguousarray(side)) for side in squares.sizes[places].T),
        pa.FixedSizeListArray.from_arrays(pa.array(pixels), image_bytes(size)),
    ]
    schema = image_schema(size)
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)
