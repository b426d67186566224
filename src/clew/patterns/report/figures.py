"""The figures of the report: the confusion matrix as SVG (with many classes, those that are
confused stand together), training curves, and how far the confidence can be trusted."""

import math
from collections.abc import Sequence

import numpy as np

from clew.base.texts import counted
from clew.metrics.calibration import calibration_points
from clew.pages.figures import Dot, Guide, Line, Panel, draw_panels, padded_range
from clew.pages.markup import Html, rect, tag
from clew.pages.numbers import decimals, percent
from clew.patterns.report.results import Run, confused_pairs, percents
from clew.patterns.report.tables import draw_plain

MOST_CLASSES = 120
_NUMBERED = 40  # up to this many classes, a cell has room for its number
_MOST_PAIRS = 15
_FEW = 9  # classes whose matrix stays small
_MOST_GROUPS, _LARGEST_GROUP = 7, 8
_FEWEST_MISTAKES = 3  # between two classes; fewer are noise
_LONGEST, _SLANT = 24, 0.71  # letters of a name; column names rise at 45 degrees
_DEEP = 0.55  # from here on the number is drawn in the paper's color
# Colors of the page's style: distinct for color-blind readers and in grayscale print.
_TRAINING, _VALIDATION = "red", "blue"
# Title, y label, and the lines: column of log.csv, name, color, dash.
_PANELS = (
    (
        "Loss",
        "loss",
        (("train_loss", "training", _TRAINING, 1), ("val_loss", "validation", _VALIDATION, 0)),
    ),
    (
        "Accuracy",
        "accuracy",
        (
            ("train_accuracy", "training", _TRAINING, 1),
            ("val_accuracy", "validation", _VALIDATION, 0),
        ),
    ),
    ("Learning rate", "", (("lr", "learning rate", "gray", 0),)),
)
_BINS = 10
_DEFAULT_THRESHOLD = 0.6


class _Grid:
    """Sizes in pixels. A name is as wide as its letters; long ones are cut. Cells shrink with more
    classes, but never below what a name needs to be read. Column names are vertical (`is_dense`) if
    slanted ones would touch each other; the slanted name of the last may extend beyond the
    matrix."""

    def __init__(self, classes: Sequence[str]) -> None:
        count = len(classes)
        room = 760 if count <= _NUMBERED else 1040
        cell = min(max(room / count, 13.0), 32.0 if count < _FEW else 40.0)
        self.names = [
            name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in classes
        ]
        self.cell, self.letter = round(cell, 1), min(max(cell * 0.8, 10.5), 13.0)
        self.is_dense = self.cell * _SLANT < self.letter
        self.side, wide = self.cell * count, self.letter * 0.56
        longest = wide * max(map(len, self.names))
        self.left = 30 + longest
        self.top = 34 + longest * (1.0 if self.is_dense else _SLANT)
        lean = 0.0 if self.is_dense else wide * _SLANT * len(self.names[-1])
        self.width = self.left + self.side + lean + 12

    def middle(self, row: int) -> float:
        """Where the text of a row stands."""
        return self.top + self.cell * (row + 0.5) + self.letter * 0.35

    def write(self, text: str, x: float, y: float, classes: str, **more: str) -> Html:
        size = f"font-size:{self.letter:.1f}px"
        return tag("text", text, x=x, y=y, class_=classes, style=size, **more)


def draw_confusion(run: Run) -> Html:
    """The matrix (one row per true class, one column per predicted class) and the pairs that are
    most often confused."""
    confusion = run.confusion
    assert confusion is not None
    # All, or those with the most mistakes, in their own order.
    mistakes = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    kept = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    if len(kept) <= _NUMBERED:
        matrix = _draw_matrix(run, kept)
        return tag("div", tag("div", matrix, _draw_pairs(run), class_="confused"))
    groups = find_groups(confusion, kept)
    ordered = np.array([place for group in groups for place in group])
    cut = tag(
        "p",
        f"The {len(kept)} of {len(run.classes):,} classes with the most mistakes are shown; "
        "results.json has the whole matrix.",
        class_="empty",
    )
    return tag(
        "div",
        tag("div", _draw_pairs(run), _draw_groups(run, groups), class_="confused"),
        tag("h3", "All classes", class_="all-classes"),
        cut if len(kept) < len(run.classes) else None,
        _draw_matrix(run, ordered, is_wide=True),
    )


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


def _draw_matrix(run: Run, places: np.ndarray, *, is_wide: bool = False) -> Html:
    """The part of the matrix of these classes, in their order."""
    assert run.confusion is not None
    classes = [run.classes[place] for place in places]
    part, totals = run.confusion[np.ix_(places, places)], run.confusion[places].sum(1)
    grid = _Grid(classes)
    cells = [
        tag(
            "g",
            grid.write(grid.names[row], grid.left - 7, grid.middle(row), "name row end"),
            [
                _draw_cell(grid, classes, row, column, int(part[row, column]), int(totals[row]))
                for column in np.flatnonzero(part[row]).tolist()
            ],
        )
        for row in range(len(classes))
    ]
    across = rect(0, 0, grid.left + grid.side, grid.cell)
    down = rect(grid.left, grid.top, grid.cell, grid.side)
    picture = tag(
        "svg",
        tag("text", "predicted", x=grid.left, y=12, class_="axis"),
        tag("text", "true", x=6, y=grid.top - 8, class_="axis"),
        rect(grid.left, grid.top, grid.side, grid.side, class_="ground"),
        # The row and the column under the pointer, which the script moves.
        tag("g", across, down, class_="marks"),
        [_column_name(grid, place) for place in range(len(classes))],
        cells,
        _net(grid),
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


def _column_name(grid: _Grid, place: int) -> Html:
    shift = grid.letter * (0.35 if grid.is_dense else 0.25)
    x, y = grid.left + grid.cell * (place + 0.5) + shift, grid.top - 6
    turned = f"rotate({-90 if grid.is_dense else -45} {x:.1f} {y:.1f})"
    return grid.write(grid.names[place], x, y, "name column", transform=turned)


def _draw_cell(
    grid: _Grid, classes: Sequence[str], row: int, column: int, count: int, total: int
) -> Html:
    x, y, side = grid.left + grid.cell * column, grid.top + grid.cell * row, grid.cell
    # Mistakes are few among the photos of a class: one in a thousand must still be visible.
    share, is_right = count / total, row == column
    depth = share if is_right else max(share**0.6, 0.22)
    box = rect(x, y, side, side, style=f"fill-opacity:{depth:.2f}")
    number = None
    if len(grid.names) <= _NUMBERED:
        tone = "deep" if depth > _DEEP else "pale"
        number = grid.write(f"{count:,}", x + side / 2, grid.middle(row), f"cell middle {tone}")
    told = f"{count:,} of {total:,} ({percent(share)})"
    tip = f'"{classes[row]}" predicted as "{classes[column]}": {told}'
    if is_right:
        tip = f'"{classes[row]}": {told} correct'
    return tag(
        "g", box, number, class_=f"cell-box {'correct' if is_right else 'wrong'}", data_tip=tip
    )


def _net(grid: _Grid) -> Html:
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
    note = tag("p", f"and {counted(more, 'less frequent pair')}", class_="muted")
    table = draw_plain(head, rows, "pairs")
    return tag("div", tag("h3", "Most frequent mistakes"), table, note if more > 0 else None)


def draw_training(run: Run) -> Html:
    panels = [_epoch_panel(run, *panel) for panel in _PANELS]
    return draw_panels([panel for panel in panels if panel.lines])


def _epoch_panel(
    run: Run, title: str, y_label: str, columns: Sequence[tuple[str, str, str, int]]
) -> Panel:
    numbered = enumerate(run.history, start=1)
    epochs = np.array([row.get("epoch") or place for place, row in numbered], dtype=float)
    lines = []
    for column, name, color, dash in columns:
        found = (row.get(column) for row in run.history)
        values = np.array([math.nan if value is None else value for value in found])
        if np.isfinite(values).any():
            has_dots = len(values) == 1
            lines.append(
                Line(x=epochs, y=values, color=color, dash=dash, tip=name, has_dots=has_dots)
            )
    last = float(max(epochs, default=1.0))
    return Panel(
        title=title,
        x_label="epoch",
        y_label=y_label,
        x_range=(1.0, last) if last > 1 else (0.5, 1.5),
        y_range=padded_range(value for line in lines for value in line.y),
        lines=tuple(lines),
        dots=_best_dot(run) if y_label == "accuracy" else (),
        legend=tuple((line.tip, line.color, line.dash) for line in lines) if y_label else (),
        has_whole_steps=True,
    )


def _best_dot(run: Run) -> tuple[Dot, ...]:
    best = run.figure("best_epoch")
    found = [row for row in run.history if row.get("epoch") == best]
    accuracy = found[0].get("val_accuracy") if found else None
    if best is None or accuracy is None:
        return ()
    tip = f"epoch {best:.0f} was kept: validation accuracy {percents(accuracy)}"
    return (Dot(x=best, y=accuracy, color=_VALIDATION, tip=tip),)


def draw_confidence(run: Run) -> Html:
    confidence = np.array([answer.probability for answer in run.answers])
    is_correct = np.array([answer.is_correct for answer in run.answers])
    draw = (_threshold_panel, _calibration_panel)
    return draw_panels([panel(confidence, is_correct) for panel in draw])


def describe_threshold(run: Run, threshold: float = _DEFAULT_THRESHOLD) -> str:
    """A sentence on how the default threshold of `identify` would divide the test photos."""
    kept = [answer for answer in run.answers if answer.probability >= threshold]
    if not kept:
        return f"No test photo reaches a confidence of {percents(threshold)}."
    right = sum(answer.is_correct for answer in kept) / len(kept)
    return (
        f'At the default threshold of {threshold:g} in "clew patterns identify", '
        f"{percents(len(kept) / len(run.answers))} of the "
        f"{counted(len(run.answers), 'test photo')} get a label, {percents(right)} of them "
        f"correctly; the others are marked as doubtful for you to check."
    )


def _threshold_panel(confidence: np.ndarray, is_correct: np.ndarray) -> Panel:
    thresholds = np.linspace(0, 1, 101)
    kept = np.array([(confidence >= at).mean() for at in thresholds])
    # NaN where no photo is left.
    right = np.array([is_correct[confidence >= at].sum() for at in thresholds])
    right = np.divide(right, kept * len(confidence), out=np.full(101, math.nan), where=kept > 0)
    lines = (
        Line(x=thresholds, y=kept, color=_TRAINING, dash=1, tip="coverage"),
        Line(x=thresholds, y=right, color=_VALIDATION, tip="accuracy"),
    )
    default = _DEFAULT_THRESHOLD
    return Panel(
        title="Coverage and accuracy by threshold",
        x_label="confidence threshold",
        y_label="share",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        lines=lines,
        guides=(
            Guide(x=(default, default), y=(0.0, 1.0), label="default", label_at=(default, 0.02)),
        ),
        legend=tuple((line.tip, line.color, line.dash) for line in lines),
    )


def _calibration_panel(confidence: np.ndarray, is_correct: np.ndarray) -> Panel:
    said, found, counts = calibration_points(
        is_correct.astype(np.int64), confidence, bins=_BINS, equal_mass=False
    )
    dots = tuple(
        Dot(
            x=float(x),
            y=float(y),
            color=_VALIDATION,
            tip=f"{counted(int(count), 'photo')}: mean confidence {decimals(float(x), 2)}, "
            f"accuracy {decimals(float(y), 2)}",
        )
        for x, y, count in zip(said, found, counts, strict=True)
    )
    return Panel(
        title="Calibration",
        x_label="confidence",
        y_label="accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        lines=(Line(x=said, y=found, color=_VALIDATION, tip="test photos", is_thin=True),),
        guides=(Guide(x=(0.0, 1.0), y=(0.0, 1.0), label="perfect", label_at=(0.05, 0.1)),),
        dots=dots,
    )
