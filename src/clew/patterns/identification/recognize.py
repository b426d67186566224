"""What one photo shows: as a whole, or from near and far, and where the model is surest."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from clew.errors import InputError
from clew.patterns.identification.config import check_top_k
from clew.patterns.identification.views import Box, combine, cut_windows, find_surest, place_windows
from clew.patterns.photos.decode import PhotoError, open_photo, read_photo
from clew.patterns.trained.model import PatternModel

_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Surest:
    """The part of the photo that speaks most for the likeliest class."""

    label: str
    probability: float
    box: Box


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """The photo's likeliest classes, the likeliest first. `views` is how many parts of it the
    model saw; `surest` is None where that was the whole photo only."""

    path: Path
    width: int
    height: int
    best: tuple[tuple[str, float], ...]
    views: int = 1
    surest: Surest | None = None

    def to_record(self) -> dict[str, Any]:
        """As JSON has it; boxes are left, top, right, bottom."""
        surest = self.surest and {
            "class": self.surest.label,
            "probability": round(self.surest.probability, 6),
            "box": list(astuple(self.surest.box)),
        }
        return {
            "photo": str(self.path),
            "width": self.width,
            "height": self.height,
            "best": [{"class": label, "probability": round(p, 6)} for label, p in self.best],
            "views": self.views,
            "surest": surest,
        }


def recognize_photo(
    model: PatternModel, path: Path, *, top_k: int = 3, multiscale: bool = False
) -> Recognition:
    """Raises InputError for a photo that is not there or cannot be read."""
    check_top_k(top_k)
    if path.is_dir():
        raise InputError(f'"{path}" is a folder: "clew patterns identify" takes all photos in it.')
    try:
        look = _look_at_parts if multiscale else _look_at_whole
        return look(model, path, top_k)
    except PhotoError as error:
        raise InputError(f'"{path}" cannot be used: {error.reason}') from None


def _look_at_whole(model: PatternModel, path: Path, top_k: int) -> Recognition:
    """Read just as identify reads it: the answer is the same."""
    square = read_photo(path, model.image_size)
    answer = model.probabilities(square.pixels[None])[0]
    return Recognition(
        path=path,
        width=square.width,
        height=square.height,
        best=_rank(model.classes, answer, top_k),
    )


def _look_at_parts(model: PatternModel, path: Path, top_k: int) -> Recognition:
    photo = open_photo(path)
    windows = place_windows(photo.width, photo.height)
    views = np.concatenate(
        [
            model.probabilities(cut_windows(photo, some, model.image_size))
            for some in _batches(windows)
        ]
    )
    answer = combine(views, windows)
    likeliest = int(answer.argmax())
    surest = find_surest(views, likeliest)
    return Recognition(
        path=path,
        width=photo.width,
        height=photo.height,
        best=_rank(model.classes, answer, top_k),
        views=len(windows),
        surest=Surest(
            label=model.classes[likeliest],
            probability=float(views[surest, likeliest]),
            box=windows[surest],
        ),
    )


def _batches(windows: list[Box]) -> Iterator[list[Box]]:
    for begin in range(0, len(windows), _BATCH):
        yield windows[begin : begin + _BATCH]


def _rank(
    classes: tuple[str, ...], answer: Float[np.ndarray, " classes"], top_k: int
) -> tuple[tuple[str, float], ...]:
    order = np.argsort(-answer, kind="stable")[:top_k]
    return tuple((classes[place], float(answer[place])) for place in order)
