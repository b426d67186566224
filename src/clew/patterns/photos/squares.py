"""Several photos to squares of one size, with a digest of each. What a process that decodes needs,
and no more: it is loaded in a fraction of a second."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32, UInt8

from clew.patterns.photos.decode import PhotoError, read_photo
from clew.patterns.photos.opening import TAKES_TURNS
from clew.patterns.photos.photo import Fault, Photo

_DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Squares:
    """The results for some photos. Arrays have one entry per photo; those of faulty ones are
    meaningless, and their digest is None."""

    images: UInt8[np.ndarray, "photos image_bytes"]
    sizes: Int32[np.ndarray, "photos 2"]
    digests: list[str | None]
    faults: dict[int, Fault] = field(default_factory=dict)  # by index

    def read(self, place: int, photo: Photo, size: int, *, take_turns: bool = True) -> None:
        """Decode the photo at index `place`."""
        self.faults.pop(place, None)
        try:
            square = read_photo(photo.path, size, take_turns=take_turns)
        except PhotoError as error:
            self.faults[place] = Fault(
                name=photo.name, label=photo.label, kind=error.kind, reason=error.reason
            )
            return
        self.images[place] = square.pixels.reshape(-1)
        self.sizes[place] = square.width, square.height
        self.digests[place] = hash_picture(self.images[place])

    def postponed(self) -> list[int]:
        """The indices of photos that must take turns with others."""
        return [place for place, fault in self.faults.items() if fault.kind == TAKES_TURNS]


def read_squares(photos: Sequence[Photo], size: int, *, take_turns: bool = True) -> Squares:
    """Decode photos one after another. Without `take_turns`, large ones are postponed."""
    squares = Squares(
        images=np.empty((len(photos), size * size * 3), np.uint8),
        sizes=np.zeros((len(photos), 2), np.int32),
        digests=[None] * len(photos),
    )
    for place, photo in enumerate(photos):
        squares.read(place, photo, size, take_turns=take_turns)
    return squares


def hash_picture(image: UInt8[np.ndarray, " image_bytes"]) -> str:
    """Identical images have equal digests, whatever file they came from."""
    return hashlib.blake2b(image.data, digest_size=_DIGEST_BYTES).hexdigest()
