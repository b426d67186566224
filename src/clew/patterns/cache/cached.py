"""Which photos of a folder can be used, and where their pictures lie.

Of equal pictures in one class only one is used. A picture that lies in two classes is used in
none: one of them must be wrong, and nobody here knows which.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, Int64

from clew.patterns.cache.contents import Contents
from clew.patterns.cache.ledger import OtherFile
from clew.patterns.cache.stamps import Stamps
from clew.patterns.photos.photo import Fault, Photo

# Of copies in several split folders, the one that is measured on stays: what is learnt from is
# not what is measured on, and the figure can be compared with others'.
_FIRST_KEPT = ("test", "validation", "train", None)
_MOST_NAMES = 3


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
    if known is not None:
        return _fault(photo, known.kind or "", known.reason or "")
    if photo.name in passing:
        return passing[photo.name]
    return _fault(photo, "unreadable", "it is gone, or may not be read")


def _find_equals(
    photos: Sequence[Photo], rows: Int64[np.ndarray, " photos"]
) -> Iterator[tuple[int, Fault]]:
    for places in _group_equal(rows):
        group = sorted((photos[place] for place in places), key=_first_kept)
        if len({photo.label for photo in group}) > 1:
            reason = f"the same picture is in several classes: {_list(group)}"
            yield from ((place, _fault(photos[place], "contradiction", reason)) for place in places)
            continue
        reason = f'the same picture as "{group[0].name}", which is used'
        for place in places:
            if photos[place] is not group[0]:
                yield place, _fault(photos[place], "duplicate", reason)


def _group_equal(rows: Int64[np.ndarray, " photos"]) -> Iterator[list[int]]:
    """The places of photos that have a row in common."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    for group in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        if len(group) > 1:
            yield group.tolist()


def _first_kept(photo: Photo) -> tuple[int, str]:
    return _FIRST_KEPT.index(photo.split), photo.name


def _list(group: Sequence[Photo]) -> str:
    """Of many copies, some from each class."""
    by_class: dict[str | None, Photo] = {}
    for photo in sorted(group, key=lambda photo: photo.name):
        by_class.setdefault(photo.label, photo)
    names = [f'"{photo.name}"' for photo in list(by_class.values())[:_MOST_NAMES]]
    more = f" and {len(group) - len(names):,} more" if len(group) > len(names) else ""
    return ", ".join(names) + more + "; keep it in the one where it belongs"


def _fault(photo: Photo, kind: str, reason: str) -> Fault:
    return Fault(name=photo.name, label=photo.label, kind=kind, reason=reason)
