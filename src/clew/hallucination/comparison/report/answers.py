"""Single answers, and where methods agree on them: the best method's worst mistakes, rank
correlations, and the answers that methods disagree on."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
    report_section,
)
from clew.pages.figures import Matrix, draw_matrix
from clew.pages.markup import Html, Section, circle, join, tag
from clew.pages.numbers import counted, decimals, percent

ANSWERS_FOLDER = "answers"  # pages of single answers, beside the report
_MISTAKES, _DISPUTED = 5, 9
_SHOWN_LETTERS, _KEPT_LETTERS = 280, 4000
_LEAST_ANSWERS = 3


def mistakes_section(comparison: Comparison) -> Section:
    best = comparison.best
    is_known = best.name in comparison.test.risks
    return report_section(
        "mistakes",
        _draw_mistakes(comparison) if is_known else join(),
        figure=is_known,
        best=best.title,
        pages=_tell_pages(comparison),
    )


def listed_mistakes(comparison: Comparison) -> list[int]:
    """The global_example_id of every answer that the section of mistakes lists."""
    if comparison.best.name not in comparison.test.risks:
        return []
    rows = np.concatenate([rows[:_MISTAKES] for rows in _find_mistakes(comparison)])
    return [int(number) for number in comparison.test.numbers[rows] if number >= 0]


def answer_page_path(number: int) -> str:
    """Where the page of an answer lies, relative to the report."""
    return f"{ANSWERS_FOLDER}/answer-{number}.html"


def _find_mistakes(comparison: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Hallucinated answers to which the best method gave a low risk, the lowest first, and correct
    ones to which it gave a high risk, the highest first."""
    test, best = comparison.test, comparison.best
    risks = test.risks[best.name]
    missed = np.flatnonzero((test.labels == 1) & (risks <= best.threshold))
    alarms = np.flatnonzero((test.labels == 0) & (risks > best.threshold))
    return (
        missed[np.argsort(risks[missed], kind="stable")],
        alarms[np.argsort(-risks[alarms], kind="stable")],
    )


def _draw_mistakes(comparison: Comparison) -> Html:
    """Two columns of cards."""
    missed, alarms = _find_mistakes(comparison)
    return tag(
        "div",
        _column(comparison, "Missed: labeled hallucinated, but low risk", missed, "hallucinated"),
        _column(comparison, "False alarms: labeled correct, but high risk", alarms, "correct"),
        class_="columns",
    )


def _column(comparison: Comparison, title: str, rows: np.ndarray, kind: str) -> Html:
    shown = rows[:_MISTAKES].tolist()
    told = counted(len(rows), f"{kind} answer") if len(rows) else "None."
    told = f"{told}; the worst {len(shown)} are shown" if len(shown) < len(rows) else told
    cards = [_card(comparison, row, _gauge(comparison, row)) for row in shown]
    return tag("div", tag("h3", title), tag("p", told, class_="muted"), cards)


def _tell_pages(comparison: Comparison) -> str:
    numbers = listed_mistakes(comparison)
    if any((comparison.folder / answer_page_path(number)).is_file() for number in numbers):
        return "Each answer's link opens its tokens, attention and hidden states."
    if not numbers:
        return ""
    return f'For one answer in detail, run "clew show" with its number, such as {numbers[0]}.'


def disputed_section(comparison: Comparison) -> Section:
    """The test answers whose risks differ most, with a dot per method that reads the model."""
    test = comparison.test
    methods = [method for method in comparison.scored if method.family != "baseline"]
    spread = np.zeros(len(test))
    if len(methods) > 1:
        spread = np.std([test.risks[method.name] for method in methods], axis=0)
    rows = [row for row in np.argsort(-spread, kind="stable").tolist() if spread[row] > 0]
    cards = [
        _card(
            comparison,
            row,
            _scale([_dot(m, float(test.risks[m.name][row])) for m in methods], "risk by method"),
        )
        for row in rows[:_DISPUTED]
    ]
    return report_section("disputed", tag("div", cards, class_="cards"), figure=rows)


def _card(comparison: Comparison, row: int, risk: Html) -> Html:
    test = comparison.test
    label = "hallucinated" if test.labels[row] else "correct"
    origin = [text for text in (test.text("set", row), test.text("category", row)) if text]
    return tag(
        "article",
        tag(
            "div",
            tag("span", label, class_=f"stamp {label}"),
            [tag("bdi", text, class_="muted") for text in origin],
            _number(comparison, row),
            class_="top",
        ),
        tag("div", _draw_text(test.text("question", row)), class_="question"),
        tag(
            "dl",
            *(tag("dt", "answer"), tag("dd", _draw_text(test.text("answer", row)))),
            *(tag("dt", "accepted"), tag("dd", _draw_text(test.text("accepted_answers", row)))),
        ),
        risk,
        class_="card",
    )


def _number(comparison: Comparison, row: int) -> Html | None:
    """Which answer it is, with a link where its page exists."""
    number = int(comparison.test.numbers[row])
    if number < 0:
        return None
    path = answer_page_path(number)
    if not (comparison.folder / path).is_file():
        return tag("span", f"answer {number}", class_="muted which")
    return tag("a", f"answer {number} in detail", href=path, class_="which")


def _draw_text(text: str | None) -> Html:
    """Text in its own direction; long text is folded, very long text cut."""
    if text is None or not text.strip():
        return tag("span", "(none)" if text is None else "(empty)", class_="muted")
    if len(text) <= _SHOWN_LETTERS:
        return tag("span", text, dir="auto", class_="words")
    cut = f" (truncated; {len(text):,} characters in total)" if len(text) > _KEPT_LETTERS else ""
    folded = tag(
        "details",
        tag("summary", f"all {counted(len(text), 'character')}"),
        tag("span", text[:_KEPT_LETTERS], dir="auto", class_="words"),
        tag("span", cut, class_="muted") if cut else None,
    )
    return join(tag("span", f"{text[:_SHOWN_LETTERS]}…", dir="auto", class_="words"), folded)


def _gauge(comparison: Comparison, row: int) -> Html:
    """The risk of the best method on a line from 0 to 1, with the threshold."""
    method = comparison.best
    value = float(comparison.test.risks[method.name][row])
    at = _place(method.threshold)
    threshold = tag("line", x1=at, x2=at, y1=3, y2=19, class_="threshold")
    told = f"risk {decimals(value, 2)}, threshold {decimals(method.threshold, 2)}"
    return _scale([threshold, _dot(method, value, 3)], told, f"{method.title}: {told}")


def _scale(marks: Sequence[Html], words: str, tip: str | None = None) -> Html:
    line = tag("line", x1="3%", x2="97%", y1=11, y2=11, class_="base")
    return tag(
        "div",
        tag("svg", line, marks, role="img", aria_label=tip or words),
        tag("div", tag("span", "0 correct"), tag("b", words), tag("span", "hallucinated 1")),
        class_="gauge",
        data_tip=tip,
    )


def _dot(method: MethodResult, value: float, places: int = 2) -> Html:
    return circle(
        _place(value),
        11,
        5,
        class_=f"dot {color_of(method.family)}",
        data_key=method.name,
        data_tip=f"{method.title}: risk {decimals(value, places)}",
    )


def _place(value: float) -> str:
    return f"{3 + 94 * min(max(value, 0.0), 1.0):.2f}%"


def agreement_section(comparison: Comparison) -> Section:
    """Spearman's rank correlation between all methods, those most similar to the best first."""
    methods, risks = list(comparison.scored), comparison.test.risks
    if len(methods) < 2 or len(comparison.test) < _LEAST_ANSWERS:
        return report_section("agreement", join(), figure=None)
    table = rank_correlations(np.stack([risks[method.name] for method in methods]))
    start = methods.index(comparison.best) if comparison.best in methods else 0
    likeness = np.nan_to_num(table[start], nan=-1.0)
    likeness[start] = 2.0
    order = np.argsort(-likeness, kind="stable").tolist()
    methods = [methods[place] for place in order]
    names = tuple(method.title for method in methods)
    matrix = Matrix(
        rows=names,
        columns=names,
        values=table[np.ix_(order, order)],
        tips=tuple(
            tuple(_agreement_tip(comparison, one, two) for two in methods) for one in methods
        ),
        low=0.0,
        high=1.0,
    )
    drawn = draw_matrix(matrix, words="Rank correlation between the methods' risks")
    return report_section("agreement", drawn, pictures={"agreement": [[drawn]]})


def rank_correlations(risks: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of every pair of rows; NaN if all values of a row are equal."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.corrcoef(rankdata(risks, axis=1))


def _agreement_tip(comparison: Comparison, one: MethodResult, other: MethodResult) -> str:
    if one is other:
        return one.title
    risks = comparison.test.risks
    differ = (risks[one.name] > one.threshold) != (risks[other.name] > other.threshold)
    return (
        f"{one.title} and {other.title} disagree on {percent(float(differ.mean()))} "
        f"of the test answers"
    )
