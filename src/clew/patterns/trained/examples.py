"""Photos of a model's own training, found again by its splits.csv, to check an export with."""

import csv
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from clew.errors import ClewError
from clew.patterns.photos.decode import PhotoError, read_square
from clew.patterns.trained.model import PatternModel, read_results

_TRIES = 4  # photos looked at for each that is wanted, where some are gone


def sample_images(
    model: PatternModel, count: int
) -> tuple[UInt8[np.ndarray, "count size size 3"], bool]:
    """Up to `count` photos from all over the training's folder, and True; made-up pictures, and
    False, where none can be found."""
    photos = _read_photos(_find_photos(model.folder, count * _TRIES), model.image_size, count)
    if photos:
        return np.stack(photos), True
    shape = (count, model.image_size, model.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), False


def _find_photos(folder: Path, count: int) -> list[Path]:
    try:
        root = Path(read_results(folder)["data"]["folder"])
        # A file's name need not be text.
        with (folder / "splits.csv").open(
            encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            names = [row["name"] for row in csv.DictReader(file)]
    except (ClewError, OSError, KeyError, TypeError):
        return []
    step = max(1, len(names) // count)
    return [root / name for name in names[::step]]


def _read_photos(paths: list[Path], size: int, count: int) -> list[np.ndarray]:
    photos: list[np.ndarray] = []
    for path in paths:
        if len(photos) == count:
            break
        try:
            photos.append(read_square(path, size))
        except PhotoError:
            continue
    return photos
