"""The map of the photos in the report: colored by class, mistakes or split."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clew.pages.markup import Html, join, tag
from clew.patterns.photo_map.block import (
    MOST_THUMBNAILS,
    Coloring,
    PhotoMap,
    draw_map,
    embed_sheet,
    map_script,
)
from clew.patterns.report.run import Run
from clew.patterns.trained.map_files import MapRow, read_map

_SPLITS = ("train", "validation", "test")
_SPLIT_COLORS = ("gray", "gold", "blue")


def read_mapped(run: Run) -> tuple[list[MapRow], bytes]:
    """The photos on the map of the run, with their thumbnails; none for an evaluation, or a run of
    an earlier version."""
    return read_map(run.folder)


def describe_shown(run: Run, rows: Sequence[MapRow]) -> str:
    photos = run.part("data").get("photos")
    if not isinstance(photos, int) or len(rows) >= photos:
        return "Every photo as the trained network sees it: similar ones are close to each other."
    return (
        f"{len(rows):,} of {photos:,} photos as the trained network sees them: similar ones are "
        "close to each other. Every mistake is among them."
    )


def draw_photo_map(run: Run, rows: Sequence[MapRow], thumbnails: bytes) -> Html:
    shown = PhotoMap(
        positions=np.array([(row.x, row.y) for row in rows], np.float32).reshape(-1, 2),
        names=[row.name for row in rows],
        colorings=[_by_class(run, rows), _by_mistake(rows), _by_split(rows)],
        notes=[_describe(row) for row in rows],
        thumbnails=embed_sheet(thumbnails, min(len(rows), MOST_THUMBNAILS)),
        addresses=_addresses(run.data_folder, rows),
    )
    return join(draw_map(shown), tag("script", Html(map_script())))


def _addresses(folder: Path | None, rows: Sequence[MapRow]) -> list[str]:
    """Photos without a thumbnail are shown from their files, while these are in place."""
    if folder is None or not folder.is_absolute():
        return []
    later = rows[MOST_THUMBNAILS:]
    return [""] * (len(rows) - len(later)) + [(folder / row.name).as_uri() for row in later]


def _by_class(run: Run, rows: Sequence[MapRow]) -> Coloring:
    names = list(dict.fromkeys([*run.classes, *(row.label for row in rows)]))
    places = {name: place for place, name in enumerate(names)}
    return Coloring(name="class", groups=tuple(names), of=[places[row.label] for row in rows])


def _by_mistake(rows: Sequence[MapRow]) -> Coloring:
    return Coloring(
        name="prediction",
        groups=("correct", "wrong"),
        of=[int(row.predicted != row.label) for row in rows],
        colors=("gray", "red"),
    )


def _by_split(rows: Sequence[MapRow]) -> Coloring:
    others = sorted({row.split for row in rows} - {*_SPLITS})
    groups = (*_SPLITS, *others)
    return Coloring(
        name="split",
        groups=groups,
        of=[groups.index(row.split) for row in rows],
        colors=(*_SPLIT_COLORS, *["green"] * len(others)),
    )


def _describe(row: MapRow) -> str:
    return "" if row.predicted == row.label else f"predicted as {row.predicted}"
