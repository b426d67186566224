"""Photos decoded once: squares of one size in Arrow shards, and batches from RAM, disk or GPU."""

from clew.patterns.cache.build import CachedPhotos, cache_photos
from clew.patterns.cache.samples import ImageSamples, Place, PlaceChoice, choose_place, open_images
from clew.patterns.cache.squares import choose_size

__all__ = [
    "CachedPhotos",
    "ImageSamples",
    "Place",
    "PlaceChoice",
    "cache_photos",
    "choose_place",
    "choose_size",
    "open_images",
]
