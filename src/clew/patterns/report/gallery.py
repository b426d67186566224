"""Test photos worth a look, plain and with a heat map: the most confident mistakes, and correct
predictions of each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps

from clew.pages.markup import Html, tag
from clew.pages.numbers import as_number, counted
from clew.patterns.photos.decode import PhotoError, open_photo, read_square
from clew.patterns.report.headline import percents
from clew.patterns.report.overlay import as_data_url, lay_over
from clew.patterns.report.run import PhotoAnswer, Run
from clew.patterns.trained.gradcam import heat_maps
from clew.patterns.trained.model import PatternModel

MOST_MISTAKES, MOST_EVIDENCE = 60, 48
_PER_CLASS = 2
SIDE = 176


@dataclass(frozen=True, kw_only=True)
class Looking:
    """The model whose heat maps are drawn, or why there are none."""

    model: PatternModel | None = None
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A photo, and the classes to draw heat maps for."""

    path: Path
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """JPEGs as data URLs; `heats` are in the order of the classes wanted. `fault` says why there is
    nothing to show."""

    photo: str = ""
    heats: tuple[str, ...] = ()
    fault: str = ""


def draw_mistakes(run: Run, looking: Looking) -> Html:
    """Draw the mistakes, the most confident first: those that no threshold would have caught."""
    mistakes = run.mistakes
    shown = mistakes[:MOST_MISTAKES]
    wanted = [_want(run, one, (one.predicted, one.label)) for one in shown]
    cards = [
        _card(
            answer,
            picture,
            (f'evidence for "{answer.predicted}"', f'evidence for "{answer.label}"'),
        )
        for answer, picture in zip(shown, show_photos(wanted, looking), strict=True)
    ]
    return tag("div", _describe_rest(len(shown), len(mistakes)), tag("div", cards, class_="photos"))


def _describe_rest(shown: int, mistakes: int) -> Html | None:
    if shown == mistakes:
        return None
    words = (
        f"{shown} of {counted(mistakes, 'mistake')} are shown, the most confident first; "
        f"predictions.csv has all of them."
    )
    return tag("p", words, class_="empty")


def draw_evidence(run: Run, looking: Looking) -> Html:
    chosen = choose_evidence(run)
    wanted = [_want(run, one, (one.predicted,)) for one in chosen]
    cards = [
        _card(answer, picture, ("evidence",))
        for answer, picture in zip(chosen, show_photos(wanted, looking), strict=True)
    ]
    classes = len({answer.label for answer in chosen})
    missing = len({answer.label for answer in run.answers if answer.is_correct}) - classes
    note = (
        f"The {classes} classes with the lowest recall are shown; "
        f"{counted(missing, 'more class', 'more classes')} would make the page slow to open."
    )
    cut = tag("p", note, class_="empty") if missing > 0 else None
    return tag("div", cut, tag("div", cards, class_="photos small"))


def choose_evidence(run: Run) -> list[PhotoAnswer]:
    """Of each class a typical photo (of median confidence) and, where there is room, the one with
    the lowest confidence. With too many classes, the hardest ones."""
    by_class: dict[str, list[PhotoAnswer]] = {name: [] for name in run.classes}
    for answer in run.answers:
        if answer.is_correct and answer.label in by_class:
            by_class[answer.label].append(answer)
    recall = {row["class"]: as_number(row.get("recall")) or 0.0 for row in run.per_class}
    known = sorted((name for name in by_class if by_class[name]), key=lambda name: recall[name])
    kept = set(known[:MOST_EVIDENCE])
    each = _PER_CLASS if _PER_CLASS * len(kept) <= MOST_EVIDENCE else 1
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
        class_=f"photo-card {'correct' if answer.is_correct else 'wrong'}",
    )


def _figure(address: str, caption: str, words: str) -> Html:
    image = tag("img", src=address, alt=words, loading="lazy", decoding="async")
    return tag("figure", image, tag("figcaption", caption))


def _verdict(answer: PhotoAnswer) -> list[Html]:
    predicted = tag("span", "predicted ", tag("b", tag("bdi", answer.predicted)))
    sure = tag("span", percents(answer.probability), class_="sure", title="confidence")
    if answer.is_correct:
        return [tag("span", tag("b", tag("bdi", answer.label))), sure]
    truth = tag("span", "true ", tag("b", tag("bdi", answer.label)), class_="truth")
    second = f"{percents(answer.second_probability)} for " if answer.second else ""
    beside = tag("span", second, tag("bdi", answer.second), class_="muted") if second else None
    return [truth, predicted, sure, *([beside] if beside else [])]


def show_photos(wanted: Sequence[Wanted], looking: Looking) -> list[Shown]:
    """One per photo, in order. A photo that was moved or damaged since then has a fault."""
    read = [_read(one, looking.model) for one in wanted]
    heats = iter(_find_heats([one for one in read if isinstance(one, _Read)], looking.model))
    return [one if isinstance(one, Shown) else _show(one, next(heats)) for one in read]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A photo for people and for the network, and the indices of the classes wanted."""

    photo: Image.Image
    square: UInt8[np.ndarray, "size size 3"]
    places: tuple[int, ...]


def _read(wanted: Wanted, model: PatternModel | None) -> _Read | Shown:
    size, classes = (1, ()) if model is None else (model.image_size, model.classes)
    try:
        photo = open_photo(wanted.path, at_least=SIDE)
        square = read_square(wanted.path, size)
    except PhotoError as error:
        return Shown(fault=f"the photo was moved or is damaged: {error.reason}")
    # Small ones are enlarged: the heat map over them is smooth.
    photo = ImageOps.contain(photo, (SIDE, SIDE), Image.Resampling.LANCZOS)
    places = tuple(classes.index(name) for name in wanted.classes if name in classes)
    return _Read(photo=photo, square=square, places=places)


def _find_heats(
    read: Sequence[_Read], model: PatternModel | None
) -> list[Float32[np.ndarray, "wanted size size"]]:
    """The heat maps of all photos, computed in batches."""
    if model is None or not read:
        return [np.zeros((0, 1, 1), np.float32)] * len(read)
    counts = [len(one.places) for one in read]
    images = np.repeat(np.stack([one.square for one in read]), counts, axis=0)
    places = np.array([place for one in read for place in one.places], dtype=np.int64)
    return np.split(heat_maps(model, images, places), np.cumsum(counts)[:-1])


def _show(read: _Read, heats: Float32[np.ndarray, "wanted size size"]) -> Shown:
    laid = tuple(as_data_url(lay_over(read.photo, heat)) for heat in heats)
    return Shown(photo=as_data_url(read.photo), heats=laid)
