"""Per token: how well the risk of single tokens finds hallucinated spans."""

from typing import Any

from clew.hallucination.comparison.report.comparison import CHANCE, Comparison, color_of
from clew.pages.figures import IntervalRow, draw_forest
from clew.pages.markup import Section, join, tag
from clew.pages.numbers import (
    as_dict,
    as_interval,
    as_number,
    counted,
    decimals,
    interval_text,
    percent,
)

_PROBE = "token_probe"


def tokens_section(comparison: Comparison) -> Section:
    raw = as_dict(comparison.raw.get("tokens"))
    found = raw.get("rows")
    rows = [as_dict(row) for row in found] if isinstance(found, list) else []
    rate = as_number(raw.get("false_positive_rate")) or 0.0
    figures = [
        tag(
            "div",
            tag("h3", title),
            draw_forest([_row(row, name) for row in rows], reference=reference, words=title),
        )
        for name, title, reference in (
            ("auroc", "AUROC per token", CHANCE),
            ("recall", f"Recall at {percent(rate)} false positives", rate),
        )
    ]
    section = Section(
        name="tokens",
        short="Tokens",
        title="Risk of single tokens",
        lead=_lead(raw),
        content=join(*figures),
        reading="Each token is scored alone: a hallucinated token in an otherwise correct answer "
        "should have a higher risk than the tokens around it. Intervals resample answers, since "
        "the tokens of one answer are not independent.",
    )
    return section.if_there(
        rows,
        "The answers have no span labels. Questions that ask for several facts, such as "
        "facts-spans, have them.",
    )


def _lead(raw: dict[str, Any]) -> str:
    tokens, answers, hallucinated = (
        int(as_number(raw.get(name)) or 0) for name in ("tokens", "answers", "hallucinated")
    )
    return (
        f"{counted(tokens, 'token')} of {counted(answers, 'test answer')} "
        f"{'has' if tokens == 1 else 'have'} a span label; {hallucinated:,} of them "
        f"{'is' if hallucinated == 1 else 'are'} hallucinated."
    )


def _row(row: dict[str, Any], name: str) -> IntervalRow:
    value, interval = as_number(row.get(name)), as_interval(row.get(f"{name}_ci"))
    title = str(row.get("title", ""))
    text = f"{decimals(value)} {interval_text(interval)}".strip()
    is_probe = row.get("method") == _PROBE
    return IntervalRow(
        label=title,
        color=color_of("probe" if is_probe else "no training"),
        value=value,
        interval=interval,
        text=text,
        tip=f"{title}: {text}",
        is_marked=is_probe,
    )
