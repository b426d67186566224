"""Single answers worth reading: the best method's worst mistakes, and those methods disagree on."""

from collections.abc import Sequence

import numpy as np

from clew.hallucination.comparison.report.agreement import disagreement
from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
)
from clew.pages.markup import Html, Section, join, tag
from clew.pages.numbers import counted, decimals

ANSWERS_FOLDER = "answers"  # pages of single answers, beside the report
_MISTAKES, _DISPUTED = 5, 9
_SHOWN_LETTERS, _KEPT_LETTERS = 280, 4000


def missed_rows(comparison: Comparison) -> np.ndarray:
    """Hallucinated answers that the best method did not flag, the lowest risk first."""
    risks = comparison.test.risks[comparison.best.name]
    wrong = (comparison.test.labels == 1) & (risks <= comparison.best.threshold)
    return _first(np.flatnonzero(wrong), risks)


def false_alarm_rows(comparison: Comparison) -> np.ndarray:
    """Correct answers that the best method flagged, the highest risk first."""
    risks = comparison.test.risks[comparison.best.name]
    wrong = (comparison.test.labels == 0) & (risks > comparison.best.threshold)
    return _first(np.flatnonzero(wrong), -risks)


def listed_mistakes(comparison: Comparison) -> list[int]:
    """The global_example_id of every answer that the section of mistakes lists."""
    if comparison.best.name not in comparison.test.risks:
        return []
    rows = [find(comparison)[:_MISTAKES] for find in (missed_rows, false_alarm_rows)]
    return [int(number) for number in comparison.test.numbers[np.concatenate(rows)] if number >= 0]


def answer_page_path(number: int) -> str:
    """Where the page of an answer lies, relative to the report."""
    return f"{ANSWERS_FOLDER}/answer-{number}.html"


def draw_mistakes(comparison: Comparison) -> Html:
    """Two columns of cards."""
    missed, alarms = missed_rows(comparison), false_alarm_rows(comparison)
    return tag(
        "div",
        _column(comparison, "Missed: hallucinated, but not flagged", missed, "hallucinated"),
        _column(comparison, "False alarms: correct, but flagged", alarms, "correct"),
        class_="columns",
    )


def draw_disputed(comparison: Comparison) -> Html:
    """The test answers whose risks differ most, with a dot per method."""
    rows = _disputed_rows(comparison)
    cards = [_card(comparison, row, _strip(comparison, row)) for row in rows[:_DISPUTED]]
    return tag("div", cards, class_="cards")


def _disputed_rows(comparison: Comparison) -> list[int]:
    spread = disagreement(comparison)
    return [int(row) for row in np.argsort(-spread, kind="stable") if spread[row] > 0]


def draw_text(text: str | None) -> Html:
    """Text in its own direction; long text is folded, very long text cut."""
    if text is None or not text.strip():
        return tag("span", "(none)" if text is None else "(empty)", class_="muted")
    if len(text) <= _SHOWN_LETTERS:
        return tag("span", text, dir="auto", class_="words")
    rest = text[:_KEPT_LETTERS]
    cut = f" (truncated; {len(text):,} characters in total)" if len(text) > _KEPT_LETTERS else ""
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
    told = counted(len(rows), f"{kind} answer") if len(rows) else "None."
    told = f"{told}; the worst {len(shown)} are shown" if len(shown) < len(rows) else told
    cards = [_card(comparison, int(row), _gauge(comparison, int(row), best)) for row in shown]
    return tag("div", tag("h3", title), tag("p", told, class_="muted"), cards)


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
        tag("div", draw_text(test.text("question", row)), class_="question"),
        tag(
            "dl",
            _pair("answer", draw_text(test.text("answer", row))),
            _pair("accepted", draw_text(test.text("accepted_answers", row))),
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


def _pair(name: str, value: Html) -> Html:
    return join(tag("dt", name), tag("dd", value))


def _gauge(comparison: Comparison, row: int, method: MethodResult) -> Html:
    """The risk on a line from 0 to 1, with the threshold."""
    value = float(comparison.test.risks[method.name][row])
    marks = [_dot(value, method, f"{method.title}: risk {decimals(value)}")]
    threshold = _upright(method.threshold, "threshold")
    told = f"risk {decimals(value, 2)}, threshold {decimals(method.threshold, 2)}"
    return _scale([threshold, *marks], told, f"{method.title}: {told}")


def _strip(comparison: Comparison, row: int) -> Html:
    marks = []
    for method in comparison.scored:
        if method.family != "baseline":
            value = float(comparison.test.risks[method.name][row])
            marks.append(_dot(value, method, f"{method.title}: risk {decimals(value, 2)}"))
    return _scale(marks, "risk by method", None)


def _scale(marks: Sequence[Html], words: str, tip: str | None) -> Html:
    line = tag("line", x1="3%", x2="97%", y1=11, y2=11, class_="base")
    return tag(
        "div",
        tag("svg", line, marks, role="img", aria_label=tip or words),
        tag("div", tag("span", "0 correct"), tag("b", words), tag("span", "hallucinated 1")),
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
        short="Disagreements",
        title="Answers on which the methods disagree",
        lead="The test answers whose risks differ most between methods.",
        content=draw_disputed(comparison),
        reading="Each dot is the risk from one method, colored by family; baselines are not shown. "
        "Hover over a dot for its method.",
    ).if_there(_disputed_rows(comparison), "This requires the risks of at least two methods.")


def mistakes_section(comparison: Comparison) -> Section:
    best = comparison.best
    is_known = best.name in comparison.test.risks
    return Section(
        name="mistakes",
        short="Mistakes",
        title=f"Worst mistakes of {best.title}",
        lead=f"Test answers on which {best.title} was most confidently wrong. Read them before you "
        "rely on it: some labels may be wrong.",
        content=draw_mistakes(comparison) if is_known else join(),
        reading="The dot is the risk, the tick the threshold above which an answer is flagged, "
        f"chosen on validation. {_tell_pages(comparison)}",
    ).if_there(is_known, f"There are no per-answer risks from {best.title}.")


def _tell_pages(comparison: Comparison) -> str:
    numbers = listed_mistakes(comparison)
    if any((comparison.folder / answer_page_path(number)).is_file() for number in numbers):
        return "Each answer's link opens its tokens, attention and hidden states."
    if not numbers:
        return ""
    return f'For one answer in detail, run "clew show" with its number, such as {numbers[0]}.'
