"""Single answers worth reading: the best method's worst mistakes, and what methods disagree on."""

from collections.abc import Sequence

import numpy as np

from clew.hallucination.comparison.report.agreement import disagreement
from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
)
from clew.pages.figures import counted, decimals
from clew.pages.markup import Html, join, tag
from clew.pages.shell import Section

_MISTAKES, _DISPUTED = 5, 9
_SHOWN_LETTERS, _KEPT_LETTERS = 280, 4000


def trusted_rows(comparison: Comparison) -> np.ndarray:
    """Made-up answers that the best method let pass, the most trusted first."""
    scores = comparison.test.scores[comparison.best.name]
    wrong = (comparison.test.labels == 1) & (scores <= comparison.best.threshold)
    return _first(np.flatnonzero(wrong), scores)


def distrusted_rows(comparison: Comparison) -> np.ndarray:
    """Right answers that the best method flagged, the most suspected first."""
    scores = comparison.test.scores[comparison.best.name]
    wrong = (comparison.test.labels == 0) & (scores > comparison.best.threshold)
    return _first(np.flatnonzero(wrong), -scores)


def draw_mistakes(comparison: Comparison) -> Html:
    """Two columns of cards."""
    best = comparison.best
    if best.name not in comparison.test.scores:
        return tag("p", f"The single scores of {best.title} are not known.", class_="empty")
    return tag(
        "div",
        _column(comparison, "Made up, but trusted", trusted_rows(comparison), "made-up answer"),
        _column(comparison, "Right, but distrusted", distrusted_rows(comparison), "right answer"),
        class_="columns",
    )


def draw_disputed(comparison: Comparison) -> Html:
    """The test answers whose probabilities lie farthest apart, with a dot a method."""
    spread = disagreement(comparison)
    rows = [int(row) for row in np.argsort(-spread, kind="stable") if spread[row] > 0]
    if not rows:
        return tag("p", "There are too few methods with scores to disagree.", class_="empty")
    cards = [_card(comparison, row, _strip(comparison, row)) for row in rows[:_DISPUTED]]
    return tag("div", cards, class_="cards")


def draw_text(text: str | None) -> Html:
    """Somebody's words, in their own direction; long ones are folded, endless ones cut."""
    if text is None or not text.strip():
        return tag("span", "(none)" if text is None else "(empty)", class_="muted")
    if len(text) <= _SHOWN_LETTERS:
        return tag("span", text, dir="auto", class_="words")
    rest = text[:_KEPT_LETTERS]
    cut = f" (cut here: {len(text):,} characters in all)" if len(text) > _KEPT_LETTERS else ""
    folded = tag(
        "details",
        tag("summary", f"all {counted(len(text), 'character')}"),
        tag("span", rest, dir="auto", class_="words"),
        tag("span", cut, class_="muted") if cut else None,
    )
    return join(tag("span", f"{text[:_SHOWN_LETTERS]}…", dir="auto", class_="words"), folded)


def _first(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    return rows[np.argsort(order[rows], kind="stable")]


def _column(comparison: Comparison, title: str, rows: np.ndarray, kind: str) -> Html:
    best, shown = comparison.best, rows[:_MISTAKES]
    told = counted(len(rows), kind) if len(rows) else "None."
    told = f"{told}, the worst {len(shown)} here" if len(shown) < len(rows) else told
    cards = [_card(comparison, int(row), _gauge(comparison, int(row), best)) for row in shown]
    return tag("div", tag("h3", title), tag("p", told, class_="muted"), cards)


def _card(comparison: Comparison, row: int, score: Html) -> Html:
    test = comparison.test
    is_made_up = bool(test.labels[row])
    stamp = tag(
        "span",
        "made up" if is_made_up else "right",
        class_=f"stamp {'made-up' if is_made_up else 'right'}",
    )
    category = test.text("category", row)
    return tag(
        "article",
        tag("div", stamp, tag("bdi", category, class_="muted") if category else None, class_="top"),
        tag("div", draw_text(test.text("question", row)), class_="question"),
        tag(
            "dl",
            _pair("answered", draw_text(test.text("answer", row))),
            _pair("right is", draw_text(test.text("right_answer", row))),
        ),
        score,
        class_="card",
    )


def _pair(name: str, value: Html) -> Html:
    return join(tag("dt", name), tag("dd", value))


def _gauge(comparison: Comparison, row: int, method: MethodResult) -> Html:
    """The probability on a line from right to made up, with the threshold."""
    value = float(comparison.test.scores[method.name][row])
    marks = [_dot(value, method, f"{method.title}: {decimals(value)}")]
    threshold = _upright(method.threshold, "threshold")
    tip = (
        f"{method.title} gave {decimals(value, 2)}; it flags above {decimals(method.threshold, 2)}"
    )
    return _scale([threshold, *marks], f"score {decimals(value, 2)}", tip)


def _strip(comparison: Comparison, row: int) -> Html:
    marks = []
    for method in comparison.scored:
        if method.family != "baseline":
            value = float(comparison.test.scores[method.name][row])
            marks.append(_dot(value, method, f"{method.title}: {decimals(value, 2)}"))
    return _scale(marks, "each dot a method", None)


def _scale(marks: Sequence[Html], words: str, tip: str | None) -> Html:
    line = tag("line", x1="3%", x2="97%", y1=11, y2=11, class_="base")
    return tag(
        "div",
        tag("svg", line, marks, role="img", aria_label=tip or words),
        tag("div", tag("span", "0 right"), tag("b", words), tag("span", "made up 1")),
        class_="gauge",
        data_tip=tip,
    )


def _dot(value: float, method: MethodResult, tip: str) -> Html:
    return tag(
        "circle",
        cx=_place(value),
        cy=11,
        r=5,
        class_=f"dot {color_of(method.family)}",
        data_key=method.name,
        data_tip=tip,
    )


def _upright(value: float, name: str) -> Html:
    return tag("line", x1=_place(value), x2=_place(value), y1=3, y2=19, class_=name)


def _place(value: float) -> str:
    return f"{3 + 94 * min(max(value, 0.0), 1.0):.2f}%"


def disputed_section(comparison: Comparison) -> Section:
    return Section(
        name="disputed",
        short="Disputes",
        title="The answers they dispute most",
        lead="Test answers whose probabilities lie farthest apart.",
        content=draw_disputed(comparison),
        reading="A dot is a method (colored by family, without the baselines) at the probability "
        "that it gave; on the left it trusts the answer, on the right it does not.",
    )


def mistakes_section(comparison: Comparison) -> Section:
    return Section(
        name="mistakes",
        short="Mistakes",
        title="The worst mistakes of the best method",
        lead=f"Where {comparison.best.title} was surest and wrong. Read them before you trust it: "
        "some may be answers that were labeled wrongly.",
        content=draw_mistakes(comparison),
        reading="The dot is the probability that the answer is made up, the tick the threshold "
        "from which it is flagged, chosen on validation.",
    )
