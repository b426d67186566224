"""Tiny photos whose pixels follow from a number, in folders, and their cache."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from clew.patterns.cache.build import CachedPhotos, cache_photos
from clew.patterns.photos import find_classes

SIZE = 32


def make_photo(path: Path, number: int, *, side: int = SIZE) -> Path:
    """Another number is another image; a PNG stores its pixels losslessly."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def pixels_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (SIZE, SIZE, 3), np.uint8)


def make_folder(root: Path, photos: int, classes: tuple[str, ...] = ("cats", "dogs")) -> Path:
    """Photo k is number k, and lies in class k modulo the classes."""
    for number in range(photos):
        make_photo(root / classes[number % len(classes)] / f"{number:04d}.png", number)
    return root


def cache(root: Path, store: Path, **settings: object) -> CachedPhotos:
    return cache_photos(find_classes(root), store, SIZE, **({"workers": 2} | settings))  # type: ignore[arg-type]


def kinds(cached: CachedPhotos) -> dict[str, str]:
    return {fault.name: fault.kind for fault in cached.faults}


def names(cached: CachedPhotos) -> list[str]:
    return [photo.name for photo in cached.photos]


def set_date(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))
