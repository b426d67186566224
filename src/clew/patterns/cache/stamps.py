"""How a photo's file is known again without opening it: by its name, its size and its date."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64

from clew.patterns.photos.photo import Photo

_GONE = -1


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """One entry a photo. A file that is gone, or may not be read, has -1 bytes: leave to read it
    would change neither its size nor its date."""

    names: pa.StringArray
    file_bytes: Int64[np.ndarray, " photos"]
    modified_ns: Int64[np.ndarray, " photos"]

    def __len__(self) -> int:
        return len(self.names)

    def keys(self) -> pa.StringArray:
        """Two files with the same key are taken for the same file, unchanged."""
        return join_keys(self.names, pa.array(self.file_bytes), pa.array(self.modified_ns))

    def are_gone(self) -> Bool[np.ndarray, " photos"]:
        return self.file_bytes == _GONE

    def take(self, places: Sequence[int] | np.ndarray) -> "Stamps":
        chosen = np.asarray(places, np.int64)
        return Stamps(
            names=self.names.take(pa.array(chosen)),
            file_bytes=self.file_bytes[chosen],
            modified_ns=self.modified_ns[chosen],
        )


def stamp_photos(photos: Sequence[Photo]) -> Stamps:
    """Ask the file system about every photo. To be done before a file is read: one that changes
    meanwhile is then read again the next time."""
    found = np.fromiter(map(_ask, photos), np.dtype((np.int64, 2)), count=len(photos))
    return Stamps(
        names=pa.array([photo.name for photo in photos], pa.string()),
        file_bytes=np.ascontiguousarray(found[:, 0]),
        modified_ns=np.ascontiguousarray(found[:, 1]),
    )


def join_keys(names: pa.Array, file_bytes: pa.Array, modified_ns: pa.Array) -> pa.StringArray:
    # The numbers come first: no name can be mistaken for one with other numbers.
    numbers = (file_bytes.cast(pa.string()), modified_ns.cast(pa.string()))
    return pc.binary_join_element_wise(*numbers, names, " ")


def _ask(photo: Photo) -> tuple[int, int]:
    try:
        found = os.stat(photo.path)
    except OSError:
        return _GONE, _GONE
    if not os.access(photo.path, os.R_OK):
        return _GONE, _GONE
    return found.st_size, found.st_mtime_ns
