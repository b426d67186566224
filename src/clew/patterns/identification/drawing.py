"""Draws identified.html and the contact sheets in one pass over the photos that are shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from PIL.Image import Image

from clew.base.texts import counted
from clew.pages.markup import Html
from clew.patterns.identification.config import PAGE_FILE, IdentifyConfig, sheet_file
from clew.patterns.identification.page import (
    PageFacts,
    close_page,
    describe_counts,
    draw_faults,
    draw_group,
    open_page,
)
from clew.patterns.identification.results import IDENTIFIED_FILE, Identified, read_entry
from clew.patterns.identification.sheets import ContactSheets, make_thumbnails
from clew.patterns.identification.tally import Group, Tally
from clew.storage.writing import replacing

_MOST_FAULTS = 500


def draw_results(
    config: IdentifyConfig, tally: Tally, classes: tuple[str, ...]
) -> tuple[list[Path], str]:
    """The contact sheets, and a sentence about photos that are not shown ("" if all are)."""
    groups = tally.groups(config.thumbnails)
    shown = sum(len(group.places) for group in groups)
    sheets = ContactSheets(config.out, title=_title(config, tally), photos=shown)
    names = [sheet_file(page) for page in range(sheets.pages)]
    left_off = _describe_hidden(groups, shown)
    facts = PageFacts(
        settings=config.as_settings(classes),
        counts=tally.counts(),
        class_counts=tally.class_counts(),
        sheets=names,
        left_off=left_off.replace("`", ""),
    )
    with (
        (config.out / IDENTIFIED_FILE).open("rb") as lines,
        replacing(config.out / PAGE_FILE) as page,
    ):
        for piece in _pieces(config, facts, tally, groups, sheets, lines):
            page.write(piece.encode("utf-8", "replace"))
    sheets.end()
    return [config.out / name for name in names], left_off


def _pieces(
    config: IdentifyConfig,
    facts: PageFacts,
    tally: Tally,
    groups: list[Group],
    sheets: ContactSheets,
    lines: IO[bytes],
) -> Iterator[Html]:
    yield open_page(facts)
    for group in groups:
        if len(group.places):
            photos = (read_entry(lines, place) for place in group.places.tolist())
            pictures = make_thumbnails(photos, workers=config.workers)
            yield from draw_group(group, _on_sheets(pictures, sheets), config.threshold)
    if faulty := facts.counts["faulty"]:
        places = tally.faulty(_MOST_FAULTS).tolist()
        yield from draw_faults((read_entry(lines, place) for place in places), faulty)
    yield close_page(facts)


def _on_sheets(
    pictures: Iterator[tuple[Identified, Image | None]], sheets: ContactSheets
) -> Iterator[tuple[Identified, Image | None]]:
    for photo, picture in pictures:
        sheets.add(photo, picture)
        yield photo, picture


def _title(config: IdentifyConfig, tally: Tally) -> str:
    return f"{config.photos.resolve().name}: {describe_counts(tally.counts())}"


def _describe_hidden(groups: list[Group], shown: int) -> str:
    total = sum(group.count for group in groups)
    if shown == total:
        return ""
    if not shown:
        return (
            f"No thumbnails were requested: {IDENTIFIED_FILE} lists all {counted(total, 'photo')}."
        )
    return (
        f"Thumbnails show {shown:,} of {counted(total, 'photo')}, the least confident of each "
        f"class; {IDENTIFIED_FILE} and identified.csv list all. To show all, set "
        f"the number of thumbnails to {total}."
    )
