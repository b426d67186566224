"""Photos decoded once: squares of one size in Arrow shards, and batches from RAM, disk or GPU."""

from clew.patterns.cache.build import cache_photos
from clew.patterns.cache.cached import CachedPhotos
from clew.patterns.cache.places import Place, PlaceChoice, choose_place
from clew.patterns.cache.samples import ImageSamples, open_images
from clew.patterns.cache.sizes import choose_size
from clew.patterns.cache.squares import hash_picture

__all__ = [
    "CachedPhotos",
    "ImageSamples",
    "Place",
    "PlaceChoice",
    "cache_photos",
    "choose_place",
    "choose_size",
    "hash_picture",
    "open_images",
]
