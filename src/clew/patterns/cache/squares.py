"""Photos to squares of one size, many at a time, and squares to rows of the store. The results come
in order."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from clew.base.cores import map_in_threads
from clew.patterns.cache.contents import Contents, Stamps
from clew.patterns.cache.store import image_bytes, image_schema
from clew.patterns.photos.decode import PhotoError, photo_size
from clew.patterns.photos.find import PhotoFolder
from clew.patterns.photos.photo import Photo
from clew.patterns.photos.processes import DecodingProcesses
from clew.patterns.photos.squares import Squares

_PHOTOS_LOOKED_AT = 500
_SIZE_STEP = 32
# A thread takes at most this many at a time, and together they make one record batch; of few
# photos, every thread gets some.
_MOST_A_TASK, _TASKS_A_THREAD = 32, 4
# Starting processes takes as long as decoding some hundred small photos, and two threads hardly
# wait for each other.
_MANY_PHOTOS, _FEW_WORKERS = 1000, 2


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


def decode_photos(
    photos: Sequence[Photo], size: int, workers: int
) -> Generator[Squares, None, None]:
    """Decode photos and yield them in order, some at a time; no more is decoded ahead than keeps
    the workers busy. These are threads; each has a process of its own if that is faster."""
    workers = max(1, workers)
    at_once = min(_MOST_A_TASK, -(-len(photos) // (_TASKS_A_THREAD * workers)))
    tasks = (photos[first : first + at_once] for first in range(0, len(photos), at_once or 1))
    is_worth_it = workers > _FEW_WORKERS and len(photos) >= _MANY_PHOTOS
    with DecodingProcesses(workers if is_worth_it else 0) as processes:
        read = partial(processes.read_squares, size=size)
        yield from map_in_threads(read, tasks, workers, ahead=workers)


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
    return pa.RecordBatch.from_arrays(columns, schema=schema)
