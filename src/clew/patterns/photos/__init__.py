"""Photos in folders: found, opened safely whatever they are, and assigned to splits."""

from clew.patterns.photos.decode import Square, open_photo, photo_size, read_photo, read_square
from clew.patterns.photos.find import PhotoFolder, find_classes, find_photos, sort_classes
from clew.patterns.photos.opening import MAX_PIXELS, MIN_SIDE, PhotoError
from clew.patterns.photos.photo import (
    SPLITS,
    SUFFIXES,
    USUAL_SHARES,
    Fault,
    Photo,
    assign_splits,
    group_copies,
    natural_order,
)

__all__ = [
    "MAX_PIXELS",
    "MIN_SIDE",
    "SPLITS",
    "SUFFIXES",
    "USUAL_SHARES",
    "Fault",
    "Photo",
    "PhotoError",
    "PhotoFolder",
    "Square",
    "assign_splits",
    "find_classes",
    "find_photos",
    "group_copies",
    "natural_order",
    "open_photo",
    "photo_size",
    "read_photo",
    "read_square",
    "sort_classes",
]
