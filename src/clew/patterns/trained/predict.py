"""What a model makes of photos: read ahead in threads, a batch at a time, in their order."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from jaxtyping import Float32, UInt8

from clew.patterns.cache import hash_picture
from clew.patterns.photos.decode import PhotoError, read_square
from clew.patterns.photos.photo import Fault, Photo
from clew.patterns.trained.model import PatternModel
from clew.threads import map_in_threads

# Enough that a thread always has a photo to read while the network works.
_BATCHES_AHEAD = 2

Square = UInt8[np.ndarray, "size size 3"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """`probabilities` are those of `classes`, None where the photo has a `fault`; `digest` tells
    equal pictures, as in splits.csv."""

    photo: Photo
    classes: tuple[str, ...]
    probabilities: Float32[np.ndarray, " classes"] | None = None
    digest: str | None = None
    fault: Fault | None = None

    def best(self, k: int = 1) -> list[tuple[str, float]]:
        """The likeliest classes with their probabilities, the first one first."""
        if self.probabilities is None:
            return []
        places = np.argsort(-self.probabilities, kind="stable")[:k]
        return [(self.classes[place], float(self.probabilities[place])) for place in places]


def predict_photos(
    model: PatternModel, photos: Iterable[Photo], *, batch_size: int = 64, workers: int = 2
) -> Iterator[Prediction]:
    """One prediction a photo, in their order; memory holds a few batches, however many there are.
    A photo that cannot be read has a fault, and the others go on."""
    squares = _read_ahead(photos, model.image_size, batch_size * _BATCHES_AHEAD, workers)
    try:
        while batch := list(islice(squares, batch_size)):
            yield from _predict(model, batch)
    finally:
        squares.close()


def _predict(model: PatternModel, batch: list[tuple[Photo, Square | Fault]]) -> list[Prediction]:
    readable = [square for _, square in batch if not isinstance(square, Fault)]
    rows = iter(model.probabilities(np.stack(readable)) if readable else ())
    predictions = []
    for photo, found in batch:
        if isinstance(found, Fault):
            told = Prediction(photo=photo, classes=model.classes, fault=found)
        else:
            told = Prediction(
                photo=photo,
                classes=model.classes,
                probabilities=next(rows),
                digest=hash_picture(found.reshape(-1)),
            )
        predictions.append(told)
    return predictions


def _read_ahead(
    photos: Iterable[Photo], size: int, ahead: int, workers: int
) -> Generator[tuple[Photo, Square | Fault], None, None]:
    return map_in_threads(partial(_read, size=size), photos, workers, ahead=ahead)


def _read(photo: Photo, size: int) -> tuple[Photo, Square | Fault]:
    try:
        return photo, read_square(photo.path, size)
    except PhotoError as error:
        fault = Fault(name=photo.name, label=photo.label, kind=error.kind, reason=error.reason)
        return photo, fault
