"""Photos for the page: small, inside the page itself, plain and with heat laid over them."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from matplotlib import colormaps
from PIL import Image, ImageOps

from clew.patterns.photos.decode import PhotoError, open_photo, read_square
from clew.patterns.trained.gradcam import heat_maps
from clew.patterns.trained.model import PatternModel

SIDE = 176
_QUALITY = 78
_HEAT = colormaps["inferno"]
_DARKEST = 0.3  # below, the colours are nearly black, as parts of photos are
_STRENGTH = 0.8  # how much of a photo the greatest heat covers


@dataclass(frozen=True, kw_only=True)
class Looking:
    """The model whose heat maps are drawn, or why there are none."""

    model: PatternModel | None = None
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A photo, and the classes for which it is asked where the model found them."""

    path: Path
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """JPEGs as addresses for the page; `heats` are in the order of the classes wanted. `fault` says
    why there is nothing to see."""

    photo: str = ""
    heats: tuple[str, ...] = ()
    fault: str = ""


def show_photos(wanted: Sequence[Wanted], looking: Looking) -> list[Shown]:
    """One each, in their order. A photo that was moved or damaged since is told, never raised."""
    read = [_read(one, looking.model) for one in wanted]
    heats = iter(_find_heats([one for one in read if isinstance(one, _Read)], looking.model))
    return [one if isinstance(one, Shown) else _show(one, next(heats)) for one in read]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A photo as a person sees it, as the network does, and the places of the classes wanted."""

    photo: Image.Image
    square: UInt8[np.ndarray, "size size 3"]
    places: tuple[int, ...]


def _read(wanted: Wanted, model: PatternModel | None) -> _Read | Shown:
    size, classes = (1, ()) if model is None else (model.image_size, model.classes)
    try:
        photo = open_photo(wanted.path, at_least=SIDE)
        square = read_square(wanted.path, size)
    except PhotoError as error:
        return Shown(fault=f"the photo is not here any more, or damaged: {error.reason}")
    # Small ones are enlarged, so that the heat over them is smooth.
    photo = ImageOps.contain(photo, (SIDE, SIDE), Image.Resampling.LANCZOS)
    places = tuple(classes.index(name) for name in wanted.classes if name in classes)
    return _Read(photo=photo, square=square, places=places)


def _find_heats(
    read: Sequence[_Read], model: PatternModel | None
) -> list[Float32[np.ndarray, "wanted size size"]]:
    """All photos at once: the network sees them in batches."""
    if model is None or not read:
        return [np.zeros((0, 1, 1), np.float32)] * len(read)
    counts = [len(one.places) for one in read]
    images = np.repeat(np.stack([one.square for one in read]), counts, axis=0)
    places = np.array([place for one in read for place in one.places], dtype=np.int64)
    return np.split(heat_maps(model, images, places), np.cumsum(counts)[:-1])


def _show(read: _Read, heats: Float32[np.ndarray, "wanted size size"]) -> Shown:
    laid = tuple(_as_address(_lay_over(read.photo, heat)) for heat in heats)
    return Shown(photo=_as_address(read.photo), heats=laid)


def _lay_over(photo: Image.Image, heat: np.ndarray) -> Image.Image:
    """The network saw the whole photo squashed to a square, so that the heat is stretched back to
    the photo's own shape. The photo below is grey: colour is heat alone."""
    wide = np.asarray(Image.fromarray(heat).resize(photo.size, Image.Resampling.BICUBIC))
    heat = np.clip(wide, 0, 1)[..., None]
    grey = np.asarray(photo.convert("L"), dtype=np.float32)[..., None] * np.ones(3, np.float32)
    colour = 255 * _HEAT(_DARKEST + (1 - _DARKEST) * heat[..., 0])[..., :3]
    share = _STRENGTH * heat**0.8
    return Image.fromarray((grey * (1 - share) + colour * share).astype(np.uint8))


def _as_address(image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
