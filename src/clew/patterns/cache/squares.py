"""Photos to squares, many at a time: threads decode, and the results come in order."""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8

from clew.patterns.cache.store import image_bytes
from clew.patterns.photos.decode import PhotoError, read_photo
from clew.patterns.photos.photo import Fault, Photo

# A thread takes at most so many at a time, and together they make one record batch; of few
# photos, every thread gets some.
_MOST_A_TASK, _TASKS_A_THREAD = 32, 4
_DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Squares:
    """What became of the photos from `first` on. Arrays have an entry for each photo; those of
    faulty ones mean nothing, and their digest is None."""

    first: int
    images: UInt8[np.ndarray, "photos image_bytes"]
    sizes: Int32[np.ndarray, "photos 2"]
    digests: list[str | None]
    faults: dict[int, Fault]  # by place in this task


def decode_photos(photos: Sequence[Photo], size: int, workers: int) -> Iterator[Squares]:
    """In the order of `photos`. No more is decoded ahead than keeps the threads busy."""
    workers = max(1, workers)
    at_once = min(_MOST_A_TASK, -(-len(photos) // (_TASKS_A_THREAD * workers)))
    under_way: deque[Future[Squares]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="clew-decode")
    try:
        for first in range(0, len(photos), at_once or 1):
            chosen = photos[first : first + at_once]
            under_way.append(pool.submit(_decode, chosen, first, size))
            if len(under_way) > workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


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
    """Equal pictures have equal digests, whatever file they came from."""
    return hashlib.blake2b(image.data, digest_size=_DIGEST_BYTES).hexdigest()
