"""Near duplicates among real photos, and photos of poor quality."""

import importlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from clew.patterns.cleaning.checks import find_issues, measure_light
from clew.patterns.features.duplicates import find_duplicates, make_small
from tests.patterns.cleaning.making import SIDE, as_squares, detailed, pieces

pytestmark = pytest.mark.slow


def recompress(photo: Image.Image) -> Image.Image:
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=35)
    return Image.open(file)


def in_other_light(photo: Image.Image) -> Image.Image:
    warm = np.asarray(photo) * [1.15, 1.0, 0.8]
    return recompress(Image.fromarray(warm.clip(0, 255).astype(np.uint8)))


CHANGES = {
    "resized": lambda photo: photo.resize((70, 64), Image.Resampling.BILINEAR),
    "recompressed": recompress,
    "cropped": lambda photo: photo.crop((0, 5, photo.width - 6, photo.height)),
    "mirrored": ImageOps.mirror,
    "brighter": lambda photo: photo.point(lambda value: min(255, value * 1.2)),
    "white-balanced": in_other_light,
    "less colorful": lambda photo: ImageEnhance.Color(photo).enhance(0.5),
    "black and white": ImageOps.grayscale,
    "all at once": lambda photo: recompress(photo.resize((90, 90)).crop((3, 1, 88, 86))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copy_of_a_photo_is_a_duplicate(change: str) -> None:
    photos = list(detailed())
    copied = range(1, len(photos), 4)
    copies = [CHANGES[change](photos[place]) for place in copied]
    found = find_duplicates(make_small(as_squares([*photos, *copies])))
    expected = {(place, len(photos) + number) for number, place in enumerate(copied)}
    assert {(pair.first, pair.second) for pair in found} == expected
    assert all(pair.mirrored == (change == "mirrored") for pair in found)


def dyed(fabric: Image.Image, color: tuple[int, int, int]) -> Image.Image:
    """A shirt of this fabric, before a white wall."""
    values = np.asarray(fabric.convert("L"))[..., None] / 255 * color
    wall = np.full(values.shape, 235.0)
    wall[20:110, 30:90] = values[20:110, 30:90]
    return Image.fromarray(wall.astype(np.uint8))


def test_photos_that_differ_only_in_color_are_not_duplicates() -> None:
    for fabric in [photo for photo in detailed() if photo.height == SIDE]:
        red, green = dyed(fabric, (250, 40, 60)), dyed(fabric, (60, 250, 40))
        small = make_small(as_squares([red, green, in_other_light(red)]))
        assert np.array_equal(small.gray[0], small.gray[1])
        assert [(pair.first, pair.second) for pair in find_duplicates(small)] == [(0, 2)]


def test_different_photos_are_not_duplicates() -> None:
    assert find_duplicates(make_small(as_squares(list(pieces())))) == []


@pytest.mark.parametrize("kind, seeds", [("banana", (1013, 1031)), ("banana", (5001, 5033))])
def test_different_drawings_of_one_shape_are_not_duplicates(
    kind: str, seeds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "docs")
    draw = importlib.import_module("draw_photos").draw_photo
    drawn = [draw(kind, seed) for seed in seeds]
    photos = [*drawn, recompress(drawn[0].resize((180, 180)))]
    found = find_duplicates(make_small(as_squares(photos)))
    assert [(pair.first, pair.second) for pair in found] == [(0, 2)]


def test_blurred_dark_and_odd_photos_are_named() -> None:
    photos = list(detailed())
    blurred = photos[0].filter(ImageFilter.GaussianBlur(6))
    dark, bright = (Image.new("RGB", (120, 120), (one,) * 3) for one in (4, 250))
    squares = as_squares([*photos, blurred, dark, bright])
    sizes = np.array([[120, 120]] * len(squares), np.int32)
    sizes[2], sizes[3] = (20, 22), (400, 60)
    reasons = {one.place: one.reason for one in find_issues(measure_light(squares), sizes)}
    first = len(photos)
    assert reasons.keys() == {first, first + 1, first + 2, 2, 3}
    assert "blurred" in reasons[first] and "very dark" in reasons[first + 1]
    assert "overexposed" in reasons[first + 2]
    assert "small: 20 x 22 pixels" in reasons[2] and "unusual shape" in reasons[3]
