"""Looking at a photo from near and far: windows on a pyramid, and one answer out of what the model
says of each. For photos in which the thing is small or off the middle."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from PIL import Image

# Of the photo's sides; each window overlaps its neighbours by half at least.
SCALES = (1.0, 0.75, 0.5, 0.35)
# A window is at most so many times wider than high: a panorama has many things side by side.
_WIDEST = 2.0
_LEAST_SIDE = 16
_MOST_STEPS = 24
# A view weighs area / (entropy + softening)^sharpness. Chosen on sign digits pasted small into
# larger pictures: the plain mean drowns the one view that shows the thing, and the surest view
# alone is now and then sure of half a thing; the area keeps photos right that were right before.
_SOFTENING, _SHARPNESS = 0.03, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A part of a photo in its pixels, upright: `right` and `bottom` are just outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def area(self) -> int:
        return (self.right - self.left) * (self.bottom - self.top)


def place_windows(width: int, height: int) -> list[Box]:
    """The whole photo first, then smaller and smaller windows, row by row."""
    whole = Box(left=0, top=0, right=width, bottom=height)
    base = min(width, height * _WIDEST), min(height, width * _WIDEST)
    windows = [whole]
    for scale in SCALES:
        wide, high = round(base[0] * scale), round(base[1] * scale)
        if min(wide, high) >= _LEAST_SIDE:
            windows += [
                Box(left=x, top=y, right=x + wide, bottom=y + high)
                for y in _steps(height, high)
                for x in _steps(width, wide)
            ]
    return list(dict.fromkeys(windows))


def _steps(length: int, window: int) -> list[int]:
    """Where windows begin along a side."""
    if window >= length:
        return [0]
    count = max(3, math.ceil((length - window) / (window / 2)) + 1)
    starts = np.linspace(0, length - window, min(count, _MOST_STEPS))
    return [int(start) for start in starts.round()]


def cut_windows(photo: Image.Image, windows: list[Box], size: int) -> np.ndarray:
    """The windows squashed to squares, as the model was trained on: uint8 [windows, S, S, 3]."""
    squares = [
        photo.resize(
            (size, size),
            Image.Resampling.LANCZOS,
            box=(box.left, box.top, box.right, box.bottom),
            reducing_gap=3.0,
        )
        for box in windows
    ]
    return np.stack([np.asarray(square) for square in squares])


def combine(
    views: Float[np.ndarray, "views classes"], windows: Sequence[Box]
) -> Float[np.ndarray, " classes"]:
    """One answer out of all views: their mean, the larger and the surer ones weighing more."""
    entropies = -(views * np.log(np.clip(views, 1e-12, 1.0))).sum(axis=1)
    areas = np.array([box.area for box in windows]) / windows[0].area
    weights = areas / (entropies + _SOFTENING) ** _SHARPNESS
    return (views * weights[:, None]).sum(axis=0) / weights.sum()


def find_surest(views: Float[np.ndarray, "views classes"], label: int) -> int:
    """The view that speaks most for a class; of those that are as sure to a percent, the first,
    which is the largest."""
    return int(np.argmax(views[:, label].round(2)))
