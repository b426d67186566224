"""Which photos of a folder can be used, and where their pictures lie."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, Int64

from clew.patterns.cache.contents import Contents
from clew.patterns.cache.ledger import OtherFile
from clew.patterns.cache.stamps import Stamps
from clew.patterns.photos.equals import refuse_equals
from clew.patterns.photos.photo import Fault, Photo


@dataclass(frozen=True, kw_only=True)
class CachedPhotos:
    """The usable photos in the order of their names, with their places in the store `store`.

    `faults` are those of single photos, in the order of their names; what was found wrong with
    the folder itself is not repeated here.
    """

    store: Path
    size: int
    photos: tuple[Photo, ...]
    rows: Int64[np.ndarray, " photos"]
    digests: list[str]
    sizes: Int32[np.ndarray, "photos 2"]  # width and height of the files
    faults: tuple[Fault, ...]

    @property
    def image_bytes(self) -> int:
        """What all pictures take in memory."""
        return len(self.photos) * self.size * self.size * 3


def judge_photos(
    store: Path,
    size: int,
    photos: Sequence[Photo],
    stamps: Stamps,
    contents: Contents,
    passing: Mapping[str, Fault],
) -> CachedPhotos:
    """`passing` are faults that the cache does not remember, by the photo's name."""
    keys = stamps.keys()
    rows = contents.find(keys)
    without = np.flatnonzero(rows < 0)
    lacking = zip(without.tolist(), keys.take(pa.array(without)).to_pylist(), strict=True)
    faults = {
        place: _find_fault(photos[place], contents.faults.get(key), passing)
        for place, key in lacking
    }
    faults.update(_find_equals(photos, rows))
    usable = np.array([place for place in range(len(photos)) if place not in faults], np.int64)
    return CachedPhotos(
        store=store,
        size=size,
        photos=tuple(photos[place] for place in usable.tolist()),
        rows=rows[usable],
        digests=contents.digests.take(rows[usable]).to_pylist(),
        sizes=contents.sizes[rows[usable]],
        faults=tuple(faults[place] for place in sorted(faults)),
    )


def _find_fault(photo: Photo, known: OtherFile | None, passing: Mapping[str, Fault]) -> Fault:
    if photo.name in passing:
        return passing[photo.name]
    kind, reason = "unreadable", "it is gone, or may not be read"
    if known is not None:
        kind, reason = known.kind or "", known.reason or ""
    return Fault(name=photo.name, label=photo.label, kind=kind, reason=reason)


def _find_equals(
    photos: Sequence[Photo], rows: Int64[np.ndarray, " photos"]
) -> Iterator[tuple[int, Fault]]:
    for places in _group_equal(rows):
        faults = refuse_equals([photos[place] for place in places])
        named = ((place, photos[place].name) for place in places)
        yield from ((place, faults[name]) for place, name in named if name in faults)


def _group_equal(rows: Int64[np.ndarray, " photos"]) -> Iterator[list[int]]:
    """The places of photos that have a row in common."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    for group in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        if len(group) > 1:
            yield group.tolist()
