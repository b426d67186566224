"""What one photo shows: as a whole, or at several scales (windows on an image pyramid, for an
object that is small or off center), and where the model is most confident."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image

from clew.base.errors import InputError
from clew.patterns.photos.decode import PhotoError, PhotoSource, open_photo, read_photo
from clew.patterns.results_file import USUAL_UNKNOWN
from clew.patterns.trained.model import PatternModel

# Of the photo's sides; each window overlaps its neighbors by at least half.
SCALES = (1.0, 0.75, 0.5, 0.35)
# A window is at most this many times wider than high: a panorama has many things side by side.
_WIDEST = 2.0
_LEAST_SIDE = 16
_MOST_STEPS = 24
# A view weighs area / (entropy + softening)^sharpness. Chosen on sign digits pasted small into
# larger images: the plain mean drowns the one view that shows the object, and the most confident
# view alone is sometimes confident about half an object; the area keeps correct photos correct.
_SOFTENING, _SHARPNESS = 0.03, 3
_BATCH = 16


class Box(NamedTuple):
    """A rectangle in the pixels of the upright photo; `right` and `bottom` are exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def area(self) -> int:
        return (self.right - self.left) * (self.bottom - self.top)


def place_windows(width: int, height: int) -> list[Box]:
    """The whole photo first, then smaller and smaller windows, row by row."""
    whole = Box(0, 0, width, height)
    base = min(width, height * _WIDEST), min(height, width * _WIDEST)
    windows = [whole]
    for scale in SCALES:
        wide, high = round(base[0] * scale), round(base[1] * scale)
        if min(wide, high) >= _LEAST_SIDE:
            windows += [
                Box(x, y, x + wide, y + high)
                for y in _steps(height, high)
                for x in _steps(width, wide)
            ]
    return list(dict.fromkeys(windows))


def _steps(length: int, window: int) -> list[int]:
    """Where windows start along a side."""
    if window >= length:
        return [0]
    count = max(3, math.ceil((length - window) / (window / 2)) + 1)
    starts = np.linspace(0, length - window, min(count, _MOST_STEPS))
    return [int(start) for start in starts.round()]


def cut_windows(photo: Image.Image, windows: list[Box], size: int) -> np.ndarray:
    """The windows squashed to squares, as the model was trained on: uint8 [windows, S, S, 3]."""
    squares = [
        photo.resize((size, size), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
        for box in windows
    ]
    return np.stack([np.asarray(square) for square in squares])


def combine(
    views: Float[np.ndarray, "views classes"], windows: Sequence[Box]
) -> Float[np.ndarray, " classes"]:
    """One prediction from all views: their mean, weighted toward the larger and more confident
    ones."""
    entropies = -(views * np.log(np.clip(views, 1e-12, 1.0))).sum(axis=1)
    areas = np.array([box.area for box in windows]) / windows[0].area
    weights = areas / (entropies + _SOFTENING) ** _SHARPNESS
    return (views * weights[:, None]).sum(axis=0) / weights.sum()


def find_best_view(views: Float[np.ndarray, "views classes"], label: int) -> int:
    """The view with the most evidence for a class; of those equally confident to a percent, the
    first, which is the largest."""
    return int(np.argmax(views[:, label].round(2)))


@dataclass(frozen=True, kw_only=True)
class BestView:
    """The part of the photo with the most evidence for the most likely class."""

    label: str
    probability: float
    box: Box


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """The photo's most likely classes, in order. `views` is the number of parts that the model saw;
    `best_view` is None if that was only the whole photo. Below the confidence `threshold`, the
    photo is doubtful; below the typicality `unknown` (that of the best view), it is unlike every
    class."""

    path: Path
    width: int
    height: int
    best: tuple[tuple[str, float], ...]
    views: int = 1
    best_view: BestView | None = None
    threshold: float = 0.6
    typicality: float | None = None
    unknown: float = USUAL_UNKNOWN

    @property
    def is_unknown(self) -> bool:
        return self.typicality is not None and self.typicality < self.unknown

    @property
    def is_doubtful(self) -> bool:
        return self.is_unknown or self.best[0][1] < self.threshold

    def to_record(self) -> dict[str, Any]:
        """The result as plain data for JSON; boxes are [left, top, right, bottom]."""
        best_view = self.best_view and {
            "class": self.best_view.label,
            "probability": round(self.best_view.probability, 6),
            "box": list(self.best_view.box),
        }
        return {
            "photo": str(self.path),
            "width": self.width,
            "height": self.height,
            "best": [{"class": label, "probability": round(p, 6)} for label, p in self.best],
            "views": self.views,
            "best_view": best_view,
            "typicality": None if self.typicality is None else round(self.typicality, 6),
            "unknown": self.is_unknown,
        }


def recognize_photo(
    model: PatternModel, path: Path, *, top_k: int = 3, multiscale: bool = False
) -> Recognition:
    """Classify one photo. Raises InputError if it does not exist or cannot be read."""
    if path.is_dir():
        raise InputError(
            f'"{path}" is a folder: use "clew patterns identify" for all photos in it.'
        )
    try:
        if multiscale:
            return _look_at_parts(model, path, top_k)
        return look_at_whole(model, path, path, top_k)
    except PhotoError as error:
        raise InputError(f'"{path}" cannot be used: {error.reason}') from None


def look_at_whole(
    model: PatternModel, source: PhotoSource, path: Path, top_k: int = 3
) -> Recognition:
    """Classify the whole photo. It is read exactly as `identify` reads it, so the prediction is the
    same. Raises PhotoError."""
    square = read_photo(source, model.image_size)
    seen = model.judge(square.pixels[None])
    answer = seen.probabilities[0]
    return Recognition(
        path=path,
        width=square.width,
        height=square.height,
        best=_rank(model.classes, answer, top_k),
        typicality=None if seen.typicality is None else float(seen.typicality[0]),
    )


def _look_at_parts(model: PatternModel, path: Path, top_k: int) -> Recognition:
    photo = open_photo(path)
    windows = place_windows(photo.width, photo.height)
    batches = (windows[first : first + _BATCH] for first in range(0, len(windows), _BATCH))
    seen = [model.judge(cut_windows(photo, some, model.image_size)) for some in batches]
    views = np.concatenate([some.probabilities for some in seen])
    typicality = [some.typicality for some in seen if some.typicality is not None]
    answer = combine(views, windows)
    top = int(answer.argmax())
    best = find_best_view(views, top)
    shown = BestView(
        label=model.classes[top], probability=float(views[best, top]), box=windows[best]
    )
    return Recognition(
        path=path,
        width=photo.width,
        height=photo.height,
        best=_rank(model.classes, answer, top_k),
        views=len(windows),
        best_view=shown,
        typicality=float(np.concatenate(typicality)[best]) if typicality else None,
    )


def _rank(
    classes: tuple[str, ...], answer: Float[np.ndarray, " classes"], top_k: int
) -> tuple[tuple[str, float], ...]:
    order = np.argsort(-answer, kind="stable")[:top_k]
    return tuple((classes[place], float(answer[place])) for place in order)
