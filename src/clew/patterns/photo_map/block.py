"""The map as a block of a page: points on a canvas, colored by what the reader chooses, with the
photo under the pointer. A page that has it includes `map_style`."""

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from clew.base.texts import counted
from clew.pages.markup import Html, join, tag

SIDE, COLUMNS = 64, 50
MOST_THUMBNAILS = 2_500
_QUALITY = 70
# Coordinates in the page, in steps of the whole width.
_STEPS = 4_095
# Easy to tell apart, on light and dark screens; more groups get hues in between.
_FIRST_COLORS = (
    *("#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#b07aa1", "#17a2b8", "#9c755f", "#d4b106"),
    *("#e377c2", "#7f7f7f"),
)
_GOLDEN_ANGLE = 137.508


@dataclass(frozen=True, kw_only=True)
class Coloring:
    """A way to color the photos: the group of each, as an index into `groups`. Groups get colors of
    their own if `colors`, names of the page's colors ("red", "blue", "gray", ...), has none."""

    name: str
    groups: tuple[str, ...]
    of: Sequence[int]
    colors: tuple[str, ...] = ()


def map_style() -> str:
    """The CSS of the block."""
    return _package_text("map.css")


def draw_map(
    positions: Float32[np.ndarray, "photos 2"],
    names: Sequence[str],
    colorings: Sequence[Coloring],
    *,
    notes: Sequence[str] = (),
    sheet: bytes = b"",
    addresses: Sequence[str] = (),
) -> Html:
    """The block, with its script, which draws every map of the page. A click on a point sends the
    event "photochosen" to the block, with the index of the photo in `detail`.

    Positions are from 0 to 1. The first photos are on the `sheet` of `draw_sheet`; others are
    loaded from `addresses` (one per photo), if given, when the pointer is on them. `notes` are
    shown below the names.
    """
    steps = (positions.clip(0, 1) * _STEPS).round().astype(int)
    address = f"data:image/jpeg;base64,{base64.b64encode(sheet).decode()}"
    count = min(len(names), MOST_THUMBNAILS)
    content = {
        "steps": _STEPS,
        "x": steps[:, 0].tolist(),
        "y": steps[:, 1].tolist(),
        "names": list(names),
        "notes": list(notes),
        "colorings": [_describe(coloring) for coloring in colorings],
        "thumbnails": {"address": address, "side": SIDE, "columns": COLUMNS, "count": count}
        if sheet
        else None,
        "addresses": list(addresses),
    }
    label = f"Map of {counted(len(names), 'photo')}: similar photos are close to each other"
    block = _package_text("map.html").format(
        choices=join(_choice(coloring, place) for place, coloring in enumerate(colorings)),
        label=label,
        # ASCII, so that half a surrogate pair in a file name can be encoded; and nothing ends the
        # script element or starts another.
        data=json.dumps(content, separators=(",", ":")).replace("<", "\\u003c"),
        script=_package_text("map.js"),
    )
    return Html(block)


def _choice(coloring: Coloring, place: int) -> Html:
    return tag(
        "button",
        coloring.name,
        type="button",
        class_="map-choice",
        data_place=place,
        aria_pressed="true" if place == 0 else "false",
    )


def _describe(coloring: Coloring) -> dict[str, object]:
    colors = list(coloring.colors) or [_color(place) for place in range(len(coloring.groups))]
    return {
        "name": coloring.name,
        "groups": list(coloring.groups),
        "of": [int(group) for group in coloring.of],
        "colors": colors,
    }


def _color(place: int) -> str:
    """Colors that differ as much as possible from those before."""
    if place < len(_FIRST_COLORS):
        return _FIRST_COLORS[place]
    lightness = (50, 38, 62)[place // 8 % 3]
    return f"hsl({(210 + place * _GOLDEN_ANGLE) % 360:.0f} 65% {lightness}%)"


def _package_text(name: str) -> str:
    return files("clew.patterns.photo_map").joinpath(name).read_text(encoding="utf-8")


def draw_sheet(images: Iterable[UInt8[np.ndarray, "size size 3"]], count: int) -> bytes:
    """The `count` images as squares of `SIDE` pixels, `COLUMNS` per row: a JPEG, b"" without
    images."""
    if not count:
        return b""
    rows = -(-count // COLUMNS)
    sheet = Image.new("RGB", (SIDE * min(COLUMNS, count), SIDE * rows))
    for place, pixels in enumerate(images):
        square = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        sheet.paste(square, (SIDE * (place % COLUMNS), SIDE * (place // COLUMNS)))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()
