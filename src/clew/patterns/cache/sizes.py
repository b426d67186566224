"""How large the squares are to be, when nobody says."""

from collections.abc import Iterator, Sequence

import numpy as np

from clew.patterns.photos.decode import PhotoError, photo_size
from clew.patterns.photos.find import PhotoFolder
from clew.patterns.photos.photo import Photo

_LOOKED_AT = 500
_STEP, _LARGEST = 32, 128


def choose_size(folder: PhotoFolder) -> int:
    """The side in pixels: that of a square as large as the photos are in the middle, to the
    nearest multiple of 32 from 32 to 128. Looks at the headers of up to 500 photos; 128 when
    none can be read."""
    sides = list(_read_sides(_spread(folder.photos)))
    if not sides:
        return _LARGEST
    steps = round(float(np.median(sides)) / _STEP)
    return _STEP * min(max(1, steps), _LARGEST // _STEP)


def _spread(photos: Sequence[Photo]) -> list[Photo]:
    """Photos from all over the folder, the same every time."""
    count = min(len(photos), _LOOKED_AT)
    return [photos[place] for place in np.linspace(0, len(photos) - 1, count).round().astype(int)]


def _read_sides(photos: Sequence[Photo]) -> Iterator[float]:
    for photo in photos:
        try:
            width, height = photo_size(photo.path)
        except PhotoError:  # told when it is decoded
            continue
        yield float(np.sqrt(width * height))
