"""The test photos worth a look, plain and with heat laid over them: the surest mistakes, and some
of each class that were right."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from matplotlib import colormaps
from PIL import Image, ImageOps

from clew.pages.figures import as_number, counted
from clew.pages.markup import Html, tag
from clew.patterns.photos.decode import PhotoError, open_photo, read_square
from clew.patterns.report.headline import percents
from clew.patterns.report.run import PhotoAnswer, Run
from clew.patterns.trained.gradcam import heat_maps
from clew.patterns.trained.model import PatternModel

MOST_MISTAKES, MOST_RIGHT = 60, 48
_RIGHT_OF_EACH = 2
SIDE = 176
_QUALITY = 78
_HEAT = colormaps["inferno"]
_DARKEST = 0.3  # below, the colors are nearly black, as parts of photos are
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


def draw_mistakes(run: Run, looking: Looking) -> Html:
    """The most sure first: they are the ones that nothing would have warned of."""
    mistakes = run.mistakes
    shown = mistakes[:MOST_MISTAKES]
    wanted = [_want(run, one, (one.predicted, one.label)) for one in shown]
    cards = [
        _card(answer, picture, (f'speaks for "{answer.predicted}"', f'speaks for "{answer.label}"'))
        for answer, picture in zip(shown, show_photos(wanted, looking), strict=True)
    ]
    return tag("div", _tell_rest(len(shown), len(mistakes)), tag("div", cards, class_="photos"))


def _tell_rest(shown: int, mistakes: int) -> Html | None:
    if shown == mistakes:
        return None
    words = (
        f"{shown} of {counted(mistakes, 'mistake')} are shown, the surest first; predictions.csv "
        f"has all."
    )
    return tag("p", words, class_="empty")


def draw_right(run: Run, looking: Looking) -> Html:
    chosen = choose_right(run)
    wanted = [_want(run, one, (one.predicted,)) for one in chosen]
    cards = [
        _card(answer, picture, ("what it looked at",))
        for answer, picture in zip(chosen, show_photos(wanted, looking), strict=True)
    ]
    classes = len({answer.label for answer in chosen})
    missing = len({answer.label for answer in run.answers if answer.is_right}) - classes
    told = (
        f"The {classes} classes with the lowest share of recognized photos are shown; "
        f"{counted(missing, 'class', 'classes')} more would make the page slow to open."
    )
    cut = tag("p", told, class_="empty") if missing > 0 else None
    return tag("div", cut, tag("div", cards, class_="photos small"))


def choose_right(run: Run) -> list[PhotoAnswer]:
    """Of each class one that is typical (its sureness is the middle one) and, where there is room,
    the one that was least sure. With too many classes, those that are hardest."""
    by_class: dict[str, list[PhotoAnswer]] = {name: [] for name in run.classes}
    for answer in run.answers:
        if answer.is_right and answer.label in by_class:
            by_class[answer.label].append(answer)
    recall = {row["class"]: as_number(row.get("recall")) or 0.0 for row in run.per_class}
    known = sorted((name for name in by_class if by_class[name]), key=lambda name: recall[name])
    kept = set(known[:MOST_RIGHT])
    each = _RIGHT_OF_EACH if _RIGHT_OF_EACH * len(kept) <= MOST_RIGHT else 1
    return [one for name in run.classes if name in kept for one in _typical(by_class[name])[:each]]


def _typical(answers: list[PhotoAnswer]) -> list[PhotoAnswer]:
    ordered = sorted(answers, key=lambda answer: (-answer.probability, answer.name))
    middle, last = ordered[len(ordered) // 2], ordered[-1]
    return [middle] if middle is last else [middle, last]


def _want(run: Run, answer: PhotoAnswer, classes: Sequence[str]) -> Wanted:
    folder = run.data_folder or run.folder
    return Wanted(path=folder / answer.name, classes=tuple(dict.fromkeys(classes)))


def _card(answer: PhotoAnswer, picture: Shown, captions: Sequence[str]) -> Html:
    pictures = [_figure(picture.photo, "photo", f"photo {answer.name}")] if picture.photo else []
    pictures += [
        _figure(heat, caption, f"{answer.name}: {caption}")
        for heat, caption in zip(picture.heats, captions, strict=False)
    ]
    fault = tag("p", picture.fault, class_="empty") if picture.fault else None
    return tag(
        "article",
        tag("div", pictures, class_="strip") if pictures else fault,
        tag("div", _verdict(answer), class_="verdict"),
        tag("div", tag("bdi", answer.name), class_="file", title=answer.name),
        class_=f"photo-card {'right' if answer.is_right else 'wrong'}",
    )


def _figure(address: str, caption: str, words: str) -> Html:
    image = tag("img", src=address, alt=words, loading="lazy", decoding="async")
    return tag("figure", image, tag("figcaption", caption))


def _verdict(answer: PhotoAnswer) -> list[Html]:
    said = tag("span", "said ", tag("b", tag("bdi", answer.predicted)))
    sure = tag("span", percents(answer.probability), class_="sure")
    if answer.is_right:
        return [tag("span", tag("b", tag("bdi", answer.label))), sure]
    truth = tag("span", "is ", tag("b", tag("bdi", answer.label)), class_="truth")
    second = f"{percents(answer.second_probability)} for " if answer.second else ""
    beside = tag("span", second, tag("bdi", answer.second), class_="muted") if second else None
    return [truth, said, sure, *([beside] if beside else [])]


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
    the photo's own shape. The photo below is gray: color is heat alone."""
    wide = np.asarray(Image.fromarray(heat).resize(photo.size, Image.Resampling.BICUBIC))
    heat = np.clip(wide, 0, 1)[..., None]
    gray = np.asarray(photo.convert("L"), dtype=np.float32)[..., None] * np.ones(3, np.float32)
    color = 255 * _HEAT(_DARKEST + (1 - _DARKEST) * heat[..., 0])[..., :3]
    share = _STRENGTH * heat**0.8
    return Image.fromarray((gray * (1 - share) + color * share).astype(np.uint8))


def _as_address(image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
