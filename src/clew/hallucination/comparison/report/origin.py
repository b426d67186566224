"""Where the figures come from: the data, the excluded methods, and all settings, folded."""

import json
from typing import Any

from clew.hallucination.comparison.report.comparison import Comparison
from clew.pages.markup import Html, Section, join, tag, with_settings
from clew.pages.numbers import DASH, as_dict, as_number, percent, whole

_SPLITS = ("train", "validation", "test")
# Each label, with the name of its count in files of an earlier version of clew.
_LABELS = (("correct", "right"), ("hallucinated", "made_up"))
_SETTINGS = (
    ("capture", "Capture: model, prompt, generation"),
    ("settings", "Comparison: methods, seeds, training"),
    ("plans", "Hardware plans: how each network was trained on this machine"),
)


def draw_data(comparison: Comparison) -> Html:
    """The splits with their size and class balance."""
    data = comparison.part("data")
    head = [tag("th", name, class_="number") for name in ("answers", "correct", "hallucinated")]
    rows = [_split_row(split, as_dict(data.get(split))) for split in _SPLITS]
    table = tag(
        "table",
        tag("thead", tag("tr", tag("th", "split"), head, tag("th", "share hallucinated"))),
        tag("tbody", rows),
        class_="plain",
    )
    told = [(name, data[name]) for name in data if name not in _SPLITS and data[name] is not None]
    facts = [tag("span", f"{name} ", tag("b", _plain(value), dir="auto")) for name, value in told]
    scrolled = tag("div", table, class_="scroll", tabindex="0")
    return tag("div", scrolled, tag("p", facts, class_="facts") if facts else None)


def draw_excluded(comparison: Comparison) -> Html:
    items = [
        tag("li", tag("b", _name(row)), ": ", tag("span", _reason(row), dir="auto"))
        for row in _excluded_rows(comparison)
    ]
    return tag("ul", items, class_="excluded")


def _excluded_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The excluded methods, under the current key or that of an earlier version of clew."""
    found = comparison.raw.get("excluded") or comparison.raw.get("left_out") or ()
    return [as_dict(row) for row in found]


def draw_settings(comparison: Comparison) -> Html:
    folds = [_fold(title, comparison.part(name)) for name, title in _SETTINGS]
    return tag("div", folds, class_="folds")


def draw_versions(comparison: Comparison) -> Html:
    versions = comparison.part("versions")
    facts = [tag("span", f"{name} ", tag("b", _plain(value))) for name, value in versions.items()]
    return tag("p", facts or "unknown", class_="facts")


def _reason(row: dict[str, Any]) -> Html:
    return with_settings(str(row.get("reason", "")))


def _name(row: dict[str, Any]) -> str:
    return str(row.get("title") or row.get("method") or "?")


def _split_row(name: str, counts: dict[str, Any]) -> Html:
    correct, hallucinated = (_count(counts, *names) for names in _LABELS)
    total = None if correct is None or hallucinated is None else correct + hallucinated
    cells = [tag("td", whole(value), class_="number") for value in (total, correct, hallucinated)]
    share = hallucinated / total if hallucinated is not None and total else None
    return tag("tr", tag("th", name, scope="row"), cells, tag("td", _balance(share)))


def _count(counts: dict[str, Any], *names: str) -> float | None:
    return next((as_number(counts[name]) for name in names if name in counts), None)


def _balance(share: float | None) -> Html | str:
    if share is None:
        return DASH
    bar = tag("i", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar")
    return tag("span", bar, f" {percent(share)}", class_="balance")


def _fold(title: str, values: dict[str, Any]) -> Html:
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str) if values else "none"
    return tag("details", tag("summary", title), tag("pre", text, dir="auto"))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def excluded_section(comparison: Comparison) -> Section:
    return Section(
        name="excluded",
        short="Excluded",
        title="Excluded methods",
        lead="Methods that could not run on this data, and what they require.",
        content=draw_excluded(comparison),
    ).if_there(_excluded_rows(comparison), "Every selected method was run.")


def data_section(comparison: Comparison) -> Section:
    return Section(
        name="data",
        short="Data",
        title="Data",
        lead="The model's own answers, split by question.",
        content=draw_data(comparison),
    )


def settings_section(comparison: Comparison) -> Section:
    return Section(
        name="settings",
        short="Settings",
        title="Settings and versions",
        lead="Everything needed to repeat this comparison.",
        content=join(draw_settings(comparison), draw_versions(comparison)),
    )
