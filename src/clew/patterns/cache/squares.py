"""Photos to squares of one size, many at a time, and squares to rows of the store. Threads decode,
and the results come in order."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, UInt8

from clew.patterns.cache.contents import Contents, Stamps
from clew.patterns.cache.store import image_bytes, image_schema
from clew.patterns.photos.decode import PhotoError, photo_size, read_photo
from clew.patterns.photos.find import PhotoFolder
from clew.patterns.photos.photo import Fault, Photo
from clew.threads import map_in_threads

_PHOTOS_LOOKED_AT = 500
_SIZE_STEP = 32
# A thread takes at most this many at a time, and together they make one record batch; of few
# photos, every thread gets some.
_MOST_A_TASK, _TASKS_A_THREAD = 32, 4
_DIGEST_BYTES = 16


def choose_size(folder: PhotoFolder, sizes: tuple[int, int] = (32, 128)) -> int:
    """Choose the side of the squares in pixels: that of a square with the photos' median area,
    rounded to a multiple of 32, within `sizes`. Reads the headers of up to 500 photos; the largest
    size when none can be read."""
    smallest, largest = sizes
    sides = list(_read_sides(_spread(folder.photos)))
    if not sides:
        return largest
    side = _SIZE_STEP * round(float(np.median(sides)) / _SIZE_STEP)
    return min(max(smallest, side), largest)


def _spread(photos: Sequence[Photo]) -> list[Photo]:
    """Photos from all over the folder, the same every time."""
    count = min(len(photos), _PHOTOS_LOOKED_AT)
    return [photos[place] for place in np.linspace(0, len(photos) - 1, count).round().astype(int)]


def _read_sides(photos: Sequence[Photo]) -> Iterator[float]:
    for photo in photos:
        try:
            width, height = photo_size(photo.path)
        except PhotoError:  # reported when it is decoded
            continue
        yield float(np.sqrt(width * height))


@dataclass(frozen=True, kw_only=True)
class Squares:
    """The results for the photos from `first` on. Arrays have one entry per photo; those of faulty
    ones are meaningless, and their digest is None."""

    first: int
    images: UInt8[np.ndarray, "photos image_bytes"]
    sizes: Int32[np.ndarray, "photos 2"]
    digests: list[str | None]
    faults: dict[int, Fault]  # by index in this task


def decode_photos(photos: Sequence[Photo], size: int, workers: int) -> Iterator[Squares]:
    """Decode photos in threads and yield them in order; no more is decoded ahead than keeps the
    threads busy."""
    workers = max(1, workers)
    at_once = min(_MOST_A_TASK, -(-len(photos) // (_TASKS_A_THREAD * workers)))

    def decode(first: int) -> Squares:
        return _decode(photos[first : first + at_once], first, size)

    firsts = range(0, len(photos), at_once or 1)
    return map_in_threads(decode, firsts, workers, ahead=workers)


def _decode(photos: Sequence[Photo], first: int, size: int) -> Squares:
    images = np.empty((len(photos), image_bytes(size)), np.uint8)
    sizes = np.zeros((len(photos), 2), np.int32)
    digests: list[str | None] = [None] * len(photos)
    faults = {}
    for place, photo in enumerate(photos):
        try:
            square = read_photo(photo.path, size)
        except PhotoError as error:
            faults[place] = Fault(
                name=photo.name, label=photo.label, kind=error.kind, reason=error.reason
            )
            continue
        images[place] = square.pixels.reshape(-1)
        sizes[place] = square.width, square.height
        digests[place] = hash_picture(images[place])
    return Squares(first=first, images=images, sizes=sizes, digests=digests, faults=faults)


def hash_picture(image: UInt8[np.ndarray, " image_bytes"]) -> str:
    """Identical images have equal digests, whatever file they came from."""
    return hashlib.blake2b(image.data, digest_size=_DIGEST_BYTES).hexdigest()


class SeenPictures:
    """The digests of all images so far, and the id of the next row."""

    def __init__(self, contents: Contents) -> None:
        self._digests = set(contents.digests.to_pylist())
        self._next_id = contents.next_id

    def is_new(self, digest: str | None) -> bool:
        """Whether the image has not been seen before; remembers it. None is not an image."""
        if digest is None or digest in self._digests:
            return False
        self._digests.add(digest)
        return True

    def take_ids(self, count: int) -> np.ndarray:
        self._next_id += count
        return np.arange(self._next_id - count, self._next_id)


def build_rows(squares: Squares, stamps: Stamps, seen: SeenPictures, size: int) -> pa.RecordBatch:
    """The rows for images that are new, with the size and date of their files."""
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
