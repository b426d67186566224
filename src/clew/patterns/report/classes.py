"""Class by class: the confusion matrix as SVG, and a sortable table of how well each class is
recognized."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.pages.figures import DASH, as_number, counted, percent, whole
from clew.pages.markup import Html, join, tag
from clew.patterns.report.headline import confused_pairs, percents
from clew.patterns.report.run import Run

MOST_CLASSES = 120
_NUMBERED = 40  # classes up to which a cell has room for its number
_MOST_PAIRS = 15
_LONGEST, _SLANT = 24, 0.71  # letters of a name; column names rise at 45 degrees
_DEEP = 0.55  # from here on the number is drawn in the paper's color
_SHARES = (
    ("recall", "recognized", "of this class's test photos, how many were taken for it (recall)"),
    ("precision", "trusted", "of the photos taken for this class, how many are of it (precision)"),
    ("f1", "F1", "harmonic mean of both"),
)
_SPLITS = ("train", "validation", "test")
_MANY = 40  # classes from which on the table is scrolled by itself


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Sizes in pixels. A name is as wide as its letters; `names` are cut already."""

    names: tuple[str, ...]
    cell: float
    letter: float

    @property
    def left(self) -> float:
        return 30 + self.letter * 0.56 * max(map(len, self.names))

    @property
    def top(self) -> float:
        return 34 + self.letter * 0.56 * _SLANT * max(map(len, self.names))

    @property
    def side(self) -> float:
        return self.cell * len(self.names)

    @property
    def width(self) -> float:
        """The last column's name leans out over the right side."""
        return self.left + self.side + self.letter * 0.56 * _SLANT * len(self.names[-1]) + 12


def draw_confusion(run: Run) -> Html:
    """The matrix (one row per true class, one column per predicted class) and, beside it, the pairs
    that are most often confused. With many classes cells grow small and lose their numbers; only
    cells that hold photos are drawn."""
    confusion = run.confusion
    assert confusion is not None
    kept = _kept_classes(confusion)
    matrix = _draw_matrix([run.classes[place] for place in kept], confusion[np.ix_(kept, kept)])
    return tag("div", _told_cut(run, kept), tag("div", matrix, _draw_pairs(run), class_="confused"))


def _kept_classes(confusion: np.ndarray) -> np.ndarray:
    """All, or those with the most mistakes, in their own order."""
    mistakes = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    worst = np.argsort(-mistakes, kind="stable")[:MOST_CLASSES]
    return np.sort(worst)


def _told_cut(run: Run, kept: np.ndarray) -> Html | None:
    if len(kept) == len(run.classes):
        return None
    return tag(
        "p",
        f"The {len(kept)} of {len(run.classes):,} classes with the most mistakes are drawn; "
        f"results.json has the whole matrix.",
        class_="empty",
    )


def _draw_matrix(classes: list[str], confusion: np.ndarray) -> Html:
    grid = _choose_grid(classes)
    totals = confusion.sum(1)
    rows = [_draw_row(grid, classes, row, confusion[row], int(totals[row])) for row in _all(grid)]
    picture = tag(
        "svg",
        tag("text", "said", x=grid.left, y=12, class_="axis"),
        tag("text", "true", x=6, y=grid.top - 8, class_="axis"),
        tag("rect", x=grid.left, y=grid.top, width=grid.side, height=grid.side, class_="ground"),
        [_column_name(grid, place) for place in _all(grid)],
        rows,
        _lines(grid),
        viewBox=f"0 0 {grid.width:.0f} {grid.top + grid.side + 6:.0f}",
        width=grid.width,
        height=grid.top + grid.side + 6,
        class_="heat matrix",
        role="img",
        aria_label="Confusion matrix: true classes down, said classes across",
    )
    return tag("div", picture, class_="scroll", tabindex="0")


def _all(grid: _Grid) -> range:
    return range(len(grid.names))


def _choose_grid(classes: list[str]) -> _Grid:
    names = tuple(map(_cut, classes))
    cell = min(max(760 / len(names), 9.0), 48.0)
    return _Grid(names=names, cell=round(cell, 1), letter=min(max(cell * 0.8, 7.5), 13.0))


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _column_name(grid: _Grid, place: int) -> Html:
    x, y = grid.left + grid.cell * (place + 0.5) + grid.letter * 0.25, grid.top - 6
    turned = f"rotate(-45 {x:.1f} {y:.1f})"
    return _word(grid.names[place], x, y, grid, "name", transform=turned)


def _draw_row(grid: _Grid, classes: list[str], row: int, counts: np.ndarray, total: int) -> Html:
    y = grid.top + grid.cell * (row + 0.5) + grid.letter * 0.35
    name = _word(grid.names[row], grid.left - 7, y, grid, "name end")
    cells = [
        _draw_cell(grid, classes, row, column, int(counts[column]), total)
        for column in np.flatnonzero(counts).tolist()
    ]
    return tag("g", name, cells)


def _draw_cell(
    grid: _Grid, classes: list[str], row: int, column: int, count: int, total: int
) -> Html:
    x, y = grid.left + grid.cell * column, grid.top + grid.cell * row
    depth = count / total if row == column else _stress(count / total)
    box = tag(
        "rect",
        x=x,
        y=y,
        width=grid.cell,
        height=grid.cell,
        style=f"fill-opacity:{depth:.2f}",
    )
    number = None
    if len(grid.names) <= _NUMBERED:
        tone = "deep" if depth > _DEEP else "pale"
        at = (x + grid.cell / 2, y + grid.cell / 2 + grid.letter * 0.35)
        number = _word(f"{count:,}", *at, grid, f"cell middle {tone}")
    kind = "right" if row == column else "wrong"
    tip = _tell_cell(classes[row], classes[column], count, total)
    return tag("g", box, number, class_=f"cell-box {kind}", data_tip=tip)


def _stress(share: float) -> float:
    """Mistakes are few among the photos of a class: one of a thousand must still be seen."""
    return float(max(share**0.6, 0.22))


def _tell_cell(label: str, predicted: str, count: int, total: int) -> str:
    share = f"{count:,} of {total:,} ({percent(count / total)})"
    if label == predicted:
        return f'"{label}": {share} recognized'
    return f'"{label}" taken for "{predicted}": {share}'


def _word(text: str, x: float, y: float, grid: _Grid, classes: str, **more: str) -> Html:
    size = f"font-size:{grid.letter:.1f}px"
    return tag("text", text, x=x, y=y, class_=classes, style=size, **more)


def _lines(grid: _Grid) -> Html:
    """A fine net, so that the eye finds the row's name from a cell far to the right."""
    right, bottom = grid.left + grid.side, grid.top + grid.side
    places = [grid.cell * place for place in range(len(grid.names) + 1)]
    across = "".join(f"M{grid.left:.1f} {grid.top + at:.1f}H{right:.1f}" for at in places)
    down = "".join(f"M{grid.left + at:.1f} {grid.top:.1f}V{bottom:.1f}" for at in places)
    return tag("path", d=across + down, class_="net")


def _draw_pairs(run: Run) -> Html:
    pairs = confused_pairs(run)
    if not pairs:
        return tag("p", "No class was taken for another.", class_="empty")
    head = [tag("th", "true"), tag("th", "said"), tag("th", "photos", class_="number")]
    rows = [
        tag(
            "tr",
            tag("td", tag("bdi", label)),
            tag("td", tag("bdi", predicted)),
            tag("td", f"{count:,}", class_="number"),
        )
        for label, predicted, count in pairs[:_MOST_PAIRS]
    ]
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), class_="plain pairs")
    more = len(pairs) - _MOST_PAIRS
    told = f"and {counted(more, 'pair')} more, with fewer photos or as many" if more > 0 else ""
    return tag("div", tag("h3", "Most often confused"), table, _muted(told))


def _muted(words: str) -> Html:
    return tag("p", words, class_="muted") if words else join()


def draw_classes(run: Run) -> Html:
    counts = [split for split in _SPLITS if any(split in row for row in run.per_class)]
    rows = [_row(row, counts) for row in run.per_class]
    table = tag("table", _head(counts), tag("tbody", rows), class_="sortable classes")
    is_long = len(rows) > _MANY
    return tag("div", table, class_="scroll long" if is_long else "scroll", tabindex="0")


def _head(counts: Sequence[str]) -> Html:
    groups = [tag("th", "on the test photos", colspan=len(_SHARES), scope="colgroup")]
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
    """The figure with a bar behind it: a weak class is seen before it is read."""
    if value is None:
        return tag("td", DASH, class_="number", data_value="")
    bar = tag("i", tag("i", style=f"width:{100 * value:.1f}%"), class_="bar")
    shown = tag("span", bar, tag("b", percents(value)), class_="balance")
    return tag("td", shown, class_="number", data_value=f"{value:.6g}")


def _count(value: float | None) -> Html:
    told = "" if value is None else f"{value:.0f}"
    return tag("td", whole(value), class_="number", data_value=told)
