"""The confusion matrix as SVG. With many classes, those that are confused with each other stand
together, and each such group also has a small matrix of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.base.texts import counted
from clew.pages.markup import Html, tag
from clew.pages.numbers import percent
from clew.patterns.report.results import Run, confused_pairs
from clew.patterns.report.tables import draw_plain

MOST_CLASSES = 120
_NUMBERED = 40  # up to this many classes, a cell has room for its number
_MOST_PAIRS = 15
_FEW = 9  # classes whose matrix stays small
_MOST_GROUPS, _LARGEST_GROUP = 7, 8
_FEWEST_MISTAKES = 3  # between two classes; fewer are noise
_LONGEST, _SLANT = 24, 0.71  # letters of a name; column names rise at 45 degrees
_DEEP = 0.55  # from here on the number is drawn in the paper's color


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
    def is_dense(self) -> bool:
        """Whether the column names are vertical, because slanted ones would touch each other."""
        return self.cell * _SLANT < self.letter

    @property
    def top(self) -> float:
        return 34 + self.letter * 0.56 * self._rise * max(map(len, self.names))

    @property
    def _rise(self) -> float:
        return 1.0 if self.is_dense else _SLANT

    @property
    def side(self) -> float:
        return self.cell * len(self.names)

    @property
    def width(self) -> float:
        """The width of the picture; the slanted name of the last column may extend beyond the
        matrix."""
        lean = 0.0 if self.is_dense else self.letter * 0.56 * _SLANT * len(self.names[-1])
        return self.left + self.side + lean + 12


def draw_confusion(run: Run) -> Html:
    """The matrix (one row per true class, one column per predicted class) and the pairs that are
    most often confused."""
    confusion = run.confusion
    assert confusion is not None
    kept = _kept_classes(confusion)
    if len(kept) <= _NUMBERED:
        matrix = _draw_matrix(run, kept)
        return tag("div", tag("div", matrix, _draw_pairs(run), class_="confused"))
    groups = find_groups(confusion, kept)
    ordered = np.array([place for group in groups for place in group])
    return tag(
        "div",
        tag("div", _draw_pairs(run), _draw_groups(run, groups), class_="confused"),
        tag("h3", "All classes", class_="all-classes"),
        _describe_cut(run, kept),
        _draw_matrix(run, ordered, is_wide=True),
    )


def _kept_classes(confusion: np.ndarray) -> np.ndarray:
    """All, or those with the most mistakes, in their own order."""
    mistakes = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    worst = np.argsort(-mistakes, kind="stable")[:MOST_CLASSES]
    return np.sort(worst)


def find_groups(confusion: np.ndarray, kept: np.ndarray) -> list[list[int]]:
    """Classes that are confused with each other, the group with the most mistakes first; a class
    that is rarely confused is a group of its own. Pairs are joined from the most to the least
    frequent, while a group stays small enough to be read."""
    both = confusion + confusion.T
    group_of = {int(place): [int(place)] for place in kept}
    found = np.argwhere(np.triu(both, 1) >= _FEWEST_MISTAKES).tolist()
    pairs = [(one, other) for one, other in found if one in group_of and other in group_of]
    for one, other in sorted(pairs, key=lambda pair: -both[pair[0], pair[1]]):
        first, second = group_of[one], group_of[other]
        if first is not second and len(first) + len(second) <= _LARGEST_GROUP:
            first += second
            group_of |= dict.fromkeys(second, first)
    groups = list({id(group): group for group in group_of.values()}.values())
    return sorted(groups, key=lambda group: -count_mistakes(confusion, group))


def count_mistakes(confusion: np.ndarray, group: Sequence[int]) -> int:
    """Photos of a class of the group that were predicted as another one of it."""
    inside = confusion[np.ix_(group, group)]
    return int(inside.sum() - inside.diagonal().sum())


def _draw_groups(run: Run, groups: Sequence[list[int]]) -> Html:
    assert run.confusion is not None
    figures = []
    for group in [group for group in groups if len(group) > 1][:_MOST_GROUPS]:
        mistakes = counted(count_mistakes(run.confusion, group), "mistake")
        title = tag("h3", f"{mistakes} among {len(group)} classes")
        figures.append(tag("div", title, _draw_matrix(run, np.sort(group))))
    return tag("div", figures, class_="class-groups")


def _describe_cut(run: Run, kept: np.ndarray) -> Html | None:
    if len(kept) == len(run.classes):
        return None
    return tag(
        "p",
        f"The {len(kept)} of {len(run.classes):,} classes with the most mistakes are shown; "
        f"results.json has the whole matrix.",
        class_="empty",
    )


def _draw_matrix(run: Run, places: np.ndarray, *, is_wide: bool = False) -> Html:
    """The part of the matrix of these classes, in their order."""
    assert run.confusion is not None
    classes = [run.classes[place] for place in places]
    part, totals = run.confusion[np.ix_(places, places)], run.confusion[places].sum(1)
    grid = _choose_grid(classes)
    rows = [_draw_row(grid, classes, row, part[row], int(totals[row])) for row in _all(grid)]
    picture = tag(
        "svg",
        tag("text", "predicted", x=grid.left, y=12, class_="axis"),
        tag("text", "true", x=6, y=grid.top - 8, class_="axis"),
        tag("rect", x=grid.left, y=grid.top, width=grid.side, height=grid.side, class_="ground"),
        _marks(grid),
        [_column_name(grid, place) for place in _all(grid)],
        rows,
        _lines(grid),
        viewBox=f"0 0 {grid.width:.0f} {grid.top + grid.side + 6:.0f}",
        width=grid.width,
        height=grid.top + grid.side + 6,
        class_="heat matrix",
        role="img",
        aria_label="Confusion matrix: true classes down, predicted classes across",
        data_left=grid.left,
        data_top=grid.top,
        data_cell=grid.cell,
    )
    return tag("div", picture, class_="scroll wide" if is_wide else "scroll", tabindex="0")


def _all(grid: _Grid) -> range:
    return range(len(grid.names))


def _choose_grid(classes: Sequence[str]) -> _Grid:
    """Cells shrink with more classes, but never below what a name needs to be read."""
    names = tuple(map(_cut, classes))
    room = 760 if len(names) <= _NUMBERED else 1040
    cell = min(max(room / len(names), 13.0), 32.0 if len(names) < _FEW else 40.0)
    return _Grid(names=names, cell=round(cell, 1), letter=min(max(cell * 0.8, 10.5), 13.0))


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _marks(grid: _Grid) -> Html:
    """The row and the column under the pointer, which the script moves."""
    across = tag("rect", x=0, y=0, width=grid.left + grid.side, height=grid.cell)
    down = tag("rect", x=grid.left, y=grid.top, width=grid.cell, height=grid.side)
    return tag("g", across, down, class_="marks")


def _column_name(grid: _Grid, place: int) -> Html:
    shift = grid.letter * (0.35 if grid.is_dense else 0.25)
    x, y = grid.left + grid.cell * (place + 0.5) + shift, grid.top - 6
    turned = f"rotate({-90 if grid.is_dense else -45} {x:.1f} {y:.1f})"
    return _word(grid.names[place], x, y, grid, "name column", transform=turned)


def _draw_row(
    grid: _Grid, classes: Sequence[str], row: int, counts: np.ndarray, total: int
) -> Html:
    y = grid.top + grid.cell * (row + 0.5) + grid.letter * 0.35
    name = _word(grid.names[row], grid.left - 7, y, grid, "name row end")
    cells = [
        _draw_cell(grid, classes, row, column, int(counts[column]), total)
        for column in np.flatnonzero(counts).tolist()
    ]
    return tag("g", name, cells)


def _draw_cell(
    grid: _Grid, classes: Sequence[str], row: int, column: int, count: int, total: int
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
    kind = "correct" if row == column else "wrong"
    tip = _describe_cell(classes[row], classes[column], count, total)
    return tag("g", box, number, class_=f"cell-box {kind}", data_tip=tip)


def _stress(share: float) -> float:
    """Mistakes are few among the photos of a class: one in a thousand must still be visible."""
    return float(max(share**0.6, 0.22))


def _describe_cell(label: str, predicted: str, count: int, total: int) -> str:
    share = f"{count:,} of {total:,} ({percent(count / total)})"
    if label == predicted:
        return f'"{label}": {share} correct'
    return f'"{label}" predicted as "{predicted}": {share}'


def _word(text: str, x: float, y: float, grid: _Grid, classes: str, **more: str) -> Html:
    size = f"font-size:{grid.letter:.1f}px"
    return tag("text", text, x=x, y=y, class_=classes, style=size, **more)


def _lines(grid: _Grid) -> Html:
    """A fine net that leads the eye from a cell to the name of its row."""
    right, bottom = grid.left + grid.side, grid.top + grid.side
    places = [grid.cell * place for place in range(len(grid.names) + 1)]
    across = "".join(f"M{grid.left:.1f} {grid.top + at:.1f}H{right:.1f}" for at in places)
    down = "".join(f"M{grid.left + at:.1f} {grid.top:.1f}V{bottom:.1f}" for at in places)
    return tag("path", d=across + down, class_="net")


def _draw_pairs(run: Run) -> Html:
    pairs = confused_pairs(run)
    if not pairs:
        return tag("p", "There are no mistakes.", class_="empty")
    head = ("true", "predicted", tag("th", "photos", class_="number"))
    rows = [
        (tag("bdi", label), tag("bdi", predicted), tag("td", f"{count:,}", class_="number"))
        for label, predicted, count in pairs[:_MOST_PAIRS]
    ]
    more = len(pairs) - _MOST_PAIRS
    note = f"and {counted(more, 'less frequent pair')}" if more > 0 else ""
    return tag(
        "div",
        tag("h3", "Most frequent mistakes"),
        draw_plain(head, rows, "pairs"),
        tag("p", note, class_="muted") if note else None,
    )
