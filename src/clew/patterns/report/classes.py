"""Class by class: a sortable table of recall, precision and F1, and the classes without photos in a
split."""

from collections.abc import Sequence
from typing import Any

from clew.base.texts import list_some
from clew.pages.markup import Html, tag
from clew.pages.numbers import DASH, as_number, whole
from clew.patterns.report.headline import classes_without, percents
from clew.patterns.report.run import Run

_SHARES = (
    ("recall", "recall", "share of this class's test photos that are classified correctly"),
    ("precision", "precision", "share of the photos predicted as this class that belong to it"),
    ("f1", "F1", "harmonic mean of precision and recall"),
)
_SPLITS = ("train", "validation", "test")
_MANY = 40  # with at least this many classes, the table scrolls separately
_NAMED = 20
_MISSING = (
    ("validation", "the best epoch was selected without them"),
    ("test", "their recall is unknown"),
)


def draw_classes(run: Run) -> Html:
    counts = [split for split in _SPLITS if any(split in row for row in run.per_class)]
    rows = [_row(row, counts) for row in run.per_class]
    table = tag("table", _head(counts), tag("tbody", rows), class_="sortable classes")
    is_long = len(rows) > _MANY
    scrolled = tag("div", table, class_="scroll long" if is_long else "scroll", tabindex="0")
    return tag("div", [_describe_missing(run, *pair) for pair in _MISSING], scrolled)


def _describe_missing(run: Run, split: str, effect: str) -> Html | None:
    names = classes_without(run, split)
    if not names:
        return None
    words = f"No {split} photos ({effect}): "
    return tag("p", words, tag("b", list_some(names, _NAMED)), ".", class_="empty", dir="auto")


def _head(counts: Sequence[str]) -> Html:
    groups = [tag("th", "test photos", colspan=len(_SHARES), scope="colgroup")]
    groups.append(tag("th", "photos", colspan=len(counts), scope="colgroup"))
    cells = [_head_cell("class", "", is_text=True)]
    cells += [_head_cell(title, hint) for _, title, hint in _SHARES]
    cells += [_head_cell(split, f"photos of the {split} split") for split in counts]
    return tag("thead", tag("tr", tag("td"), groups, class_="groups"), tag("tr", cells))


def _head_cell(title: str, hint: str, *, is_text: bool = False) -> Html:
    button = tag("button", title, type="button", data_tip=hint or None)
    return tag("th", button, scope="col", class_="name" if is_text else "number")


def _row(row: dict[str, Any], counts: Sequence[str]) -> Html:
    name = str(row["class"])
    cells = [_share(as_number(row.get(key))) for key, _, _ in _SHARES]
    cells += [_count(as_number(row.get(split))) for split in counts]
    first = tag("th", tag("bdi", name), scope="row", class_="name", data_value=name)
    return tag("tr", first, cells)


def _share(value: float | None) -> Html:
    """The figure with a bar beside it: a weak class is visible at a glance."""
    if value is None:
        return tag("td", DASH, class_="number", data_value="")
    bar = tag("i", tag("i", style=f"width:{100 * value:.1f}%"), class_="bar")
    shown = tag("span", bar, tag("b", percents(value)), class_="balance")
    return tag("td", shown, class_="number", data_value=f"{value:.6g}")


def _count(value: float | None) -> Html:
    exact = "" if value is None else f"{value:.0f}"
    return tag("td", whole(value), class_="number", data_value=exact)
