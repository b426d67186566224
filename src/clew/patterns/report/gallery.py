"""Photos in the report: the most confident mistakes and correct predictions of each class, plain
and with a heat map, and the map of all photos."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from matplotlib import colormaps
from PIL import Image, ImageOps

from clew.base.texts import counted
from clew.pages.markup import Html, tag
from clew.pages.numbers import as_number
from clew.patterns.photo_map.block import MOST_THUMBNAILS, Coloring, draw_map
from clew.patterns.photos.decode import open_photo, read_square
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import SPLITS
from clew.patterns.report.results import PhotoAnswer, Run, percents
from clew.patterns.trained.model import PatternModel, heat_maps
from clew.patterns.trained.tables import MapRow

_MOST_MISTAKES, _MOST_EVIDENCE = 60, 48
_PER_CLASS = 2
_SIDE = 176
_QUALITY = 78
_HEAT = colormaps["inferno"]
_DARKEST = 0.3  # below, the colors are nearly black
_STRENGTH = 0.65  # opacity of the strongest heat: the photo can be seen through it
_SPLIT_COLORS = ("gray", "gold", "blue")


def draw_mistakes(run: Run, model: PatternModel | None) -> Html:
    """Draw the mistakes, the most confident first: those that no threshold would have caught.
    Without a model there are no heat maps."""
    shown = run.mistakes[:_MOST_MISTAKES]
    wanted = [(one.predicted, one.label) for one in shown]
    captions = [[f'evidence for "{name}"' for name in names] for names in wanted]
    cards = _draw_cards(run, model, shown, wanted, captions)
    words = (
        f"{len(shown)} of {counted(len(run.mistakes), 'mistake')} are shown, the most confident "
        "first; predictions.csv has all of them."
    )
    rest = tag("p", words, class_="empty") if len(shown) < len(run.mistakes) else None
    return tag("div", rest, tag("div", cards, class_="photos"))


def draw_evidence(run: Run, model: PatternModel | None) -> Html:
    chosen = _choose_evidence(run)
    wanted = [(one.predicted,) for one in chosen]
    cards = _draw_cards(run, model, chosen, wanted, [["evidence"]] * len(chosen))
    classes = len({answer.label for answer in chosen})
    missing = len({answer.label for answer in run.answers if answer.is_correct}) - classes
    note = (
        f"The {classes} classes with the lowest recall are shown; "
        f"{counted(missing, 'more class', 'more classes')} would make the page slow to open."
    )
    cut = tag("p", note, class_="empty") if missing > 0 else None
    return tag("div", cut, tag("div", cards, class_="photos small"))


def _choose_evidence(run: Run) -> list[PhotoAnswer]:
    """Of each class a typical photo (of median confidence) and, where there is room, the one with
    the lowest confidence. With too many classes, the hardest ones."""
    by_class: dict[str, list[PhotoAnswer]] = {name: [] for name in run.classes}
    for answer in run.answers:
        if answer.is_correct and answer.label in by_class:
            by_class[answer.label].append(answer)
    recall = {row["class"]: as_number(row.get("recall")) or 0.0 for row in run.per_class}
    known = sorted((name for name in by_class if by_class[name]), key=lambda name: recall[name])
    kept = set(known[:_MOST_EVIDENCE])
    each = _PER_CLASS if _PER_CLASS * len(kept) <= _MOST_EVIDENCE else 1
    return [one for name in run.classes if name in kept for one in _typical(by_class[name])[:each]]


def _typical(answers: list[PhotoAnswer]) -> list[PhotoAnswer]:
    ordered = sorted(answers, key=lambda answer: (-answer.probability, answer.name))
    middle, last = ordered[len(ordered) // 2], ordered[-1]
    return [middle] if middle is last else [middle, last]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A photo for people and for the network, and the indices of the classes wanted."""

    photo: Image.Image
    square: UInt8[np.ndarray, "size size 3"]
    places: tuple[int, ...]


def _draw_cards(
    run: Run,
    model: PatternModel | None,
    answers: Sequence[PhotoAnswer],
    wanted: Sequence[Sequence[str]],
    captions: Sequence[Sequence[str]],
) -> Iterator[Html]:
    """One card per photo, with heat maps for the classes `wanted`; the reason instead of a photo
    that was moved or damaged since then."""
    folder = run.data_folder or run.folder
    read = [
        _read(folder / answer.name, classes, model)
        for answer, classes in zip(answers, wanted, strict=True)
    ]
    heats = iter(_find_heats([one for one in read if isinstance(one, _Read)], model))
    for answer, one, words in zip(answers, read, captions, strict=True):
        if isinstance(one, str):
            yield _card(answer, tag("p", one, class_="empty"))
            continue
        pictures = [_figure(one.photo, "photo", f"photo {answer.name}")]
        pictures += [
            _figure(lay_over(one.photo, heat), caption, f"{answer.name}: {caption}")
            for heat, caption in zip(next(heats), words, strict=False)
        ]
        yield _card(answer, tag("div", pictures, class_="strip"))


def _read(path: Path, wanted: Sequence[str], model: PatternModel | None) -> _Read | str:
    size, classes = (1, ()) if model is None else (model.image_size, model.classes)
    try:
        photo = open_photo(path, at_least=_SIDE)
        square = read_square(path, size)
    except PhotoError as error:
        return f"the photo was moved or is damaged: {error.reason}"
    # Small ones are enlarged: the heat map over them is smooth.
    photo = ImageOps.contain(photo, (_SIDE, _SIDE), Image.Resampling.LANCZOS)
    places = tuple(classes.index(name) for name in dict.fromkeys(wanted) if name in classes)
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


def _card(answer: PhotoAnswer, pictures: Html) -> Html:
    return tag(
        "article",
        pictures,
        tag("div", _verdict(answer), class_="verdict"),
        tag("div", tag("bdi", answer.name), class_="file", title=answer.name),
        class_=f"photo-card {'correct' if answer.is_correct else 'wrong'}",
    )


def _figure(picture: Image.Image, caption: str, words: str) -> Html:
    image = tag("img", src=as_data_url(picture), alt=words, loading="lazy", decoding="async")
    return tag("figure", image, tag("figcaption", caption))


def _verdict(answer: PhotoAnswer) -> list[Html | None]:
    sure = tag("span", percents(answer.probability), class_="sure", title="confidence")
    if answer.is_correct:
        return [tag("span", tag("b", tag("bdi", answer.label))), sure]
    truth = tag("span", "true ", tag("b", tag("bdi", answer.label)), class_="truth")
    predicted = tag("span", "predicted ", tag("b", tag("bdi", answer.predicted)))
    second = f"{percents(answer.second_probability)} for "
    beside = tag("span", second, tag("bdi", answer.second), class_="muted")
    return [truth, predicted, sure, beside if answer.second else None]


def lay_over(photo: Image.Image, heat: Float32[np.ndarray, "size size"]) -> Image.Image:
    """The network saw the photo squeezed into a square, so the heat map is stretched back to its
    shape. The photo below is gray: color is heat only."""
    wide = np.asarray(Image.fromarray(heat).resize(photo.size, Image.Resampling.BICUBIC))
    heat = np.clip(wide, 0, 1)[..., None]
    gray = np.asarray(photo.convert("L"), dtype=np.float32)[..., None] * np.ones(3, np.float32)
    color = 255 * _HEAT(_DARKEST + (1 - _DARKEST) * heat[..., 0])[..., :3]
    share = _STRENGTH * heat
    return Image.fromarray((gray * (1 - share) + color * share).astype(np.uint8))


def as_data_url(image: Image.Image) -> str:
    """The picture as a JPEG inside a "data:" address."""
    content = io.BytesIO()
    image.save(content, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def describe_shown(run: Run, rows: Sequence[MapRow]) -> str:
    photos = run.part("data").get("photos")
    if not isinstance(photos, int) or len(rows) >= photos:
        return "Every photo as the trained network sees it: similar ones are close to each other."
    return (
        f"{len(rows):,} of {photos:,} photos as the trained network sees them: similar ones are "
        "close to each other. Every mistake is among them."
    )


def draw_run_map(run: Run, rows: Sequence[MapRow], thumbnails: bytes) -> Html:
    """The map of the photos, colored by class, mistakes or split."""
    truth = ["wrong" if row.predicted != row.label else "correct" for row in rows]
    splits = (*SPLITS, *sorted({row.split for row in rows} - {*SPLITS}))
    return draw_map(
        np.array([(row.x, row.y) for row in rows], np.float32).reshape(-1, 2),
        [row.name for row in rows],
        [
            _color("class", run.classes, [row.label for row in rows]),
            _color("prediction", ("correct", "wrong"), truth, ("gray", "red")),
            _color("split", splits, [row.split for row in rows], _SPLIT_COLORS),
        ],
        notes=[
            "" if row.predicted == row.label else f"predicted as {row.predicted}" for row in rows
        ],
        sheet=thumbnails,
        addresses=_find_addresses(run.data_folder, rows),
    )


def _color(
    name: str, groups: Sequence[str], of: Sequence[str], colors: Sequence[str] = ()
) -> Coloring:
    """Photos by the group that each is in; those that are not in `groups` are green."""
    names = tuple(dict.fromkeys((*groups, *of)))
    places = {group: place for place, group in enumerate(names)}
    more = ["green"] * (len(names) - len(colors)) if colors else []
    return Coloring(
        name=name, groups=names, of=[places[group] for group in of], colors=(*colors, *more)
    )


def _find_addresses(folder: Path | None, rows: Sequence[MapRow]) -> list[str]:
    """Photos without a thumbnail are shown from their files, while these are in place."""
    if folder is None or not folder.is_absolute():
        return []
    later = rows[MOST_THUMBNAILS:]
    return [""] * (len(rows) - len(later)) + [(folder / row.name).as_uri() for row in later]
