"""Where the figures come from: the data, what was left out, and all settings, folded away."""

import json
from typing import Any

from clew.hallucination.comparison.report.comparison import Comparison
from clew.pages.figures import DASH, as_dict, as_number, percent, whole
from clew.pages.markup import Html, join, tag, with_settings
from clew.pages.shell import Section

_SPLITS = ("train", "validation", "test")
_SETTINGS = (
    ("capture", "Capture: how the answers came about"),
    ("settings", "Comparison: methods, seeds, training"),
    ("plans", "Plans: how each network was trained on this machine"),
)


def draw_data(comparison: Comparison) -> Html:
    """The splits, their size and their balance."""
    data = comparison.part("data")
    head = [tag("th", name, class_="number") for name in ("answers", "right", "made up")]
    rows = [_split_row(split, as_dict(data.get(split))) for split in _SPLITS]
    table = tag(
        "table",
        tag("thead", tag("tr", tag("th", "split"), head, tag("th", "balance"))),
        tag("tbody", rows),
        class_="plain",
    )
    told = [(name, data[name]) for name in data if name not in _SPLITS and data[name] is not None]
    facts = [tag("span", f"{name} ", tag("b", _plain(value), dir="auto")) for name, value in told]
    return tag("div", table, tag("p", facts, class_="facts") if facts else None)


def draw_left_out(comparison: Comparison) -> Html:
    rows = [as_dict(row) for row in comparison.raw.get("left_out") or ()]
    if not rows:
        return tag("p", "No method was left out.", class_="empty")
    items = [
        tag("li", tag("b", _name(row)), ": ", tag("span", _reason(row), dir="auto")) for row in rows
    ]
    return tag("ul", items, class_="left-out")


def draw_settings(comparison: Comparison) -> Html:
    folds = [_fold(title, comparison.part(name)) for name, title in _SETTINGS]
    return tag("div", folds, class_="folds")


def draw_versions(comparison: Comparison) -> Html:
    versions = comparison.part("versions")
    facts = [tag("span", f"{name} ", tag("b", _plain(value))) for name, value in versions.items()]
    return tag("p", facts or "not known", class_="facts")


def _reason(row: dict[str, Any]) -> Html:
    return with_settings(str(row.get("reason", "")))


def _name(row: dict[str, Any]) -> str:
    return str(row.get("title") or row.get("method") or "?")


def _split_row(name: str, counts: dict[str, Any]) -> Html:
    right, made_up = (as_number(counts.get(kind)) for kind in ("right", "made_up"))
    total = None if right is None or made_up is None else right + made_up
    cells = [tag("td", whole(value), class_="number") for value in (total, right, made_up)]
    share = made_up / total if made_up is not None and total else None
    return tag("tr", tag("th", name, scope="row"), cells, tag("td", _balance(share)))


def _balance(share: float | None) -> Html | str:
    if share is None:
        return DASH
    bar = tag("i", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar")
    return tag("span", bar, f" {percent(share)} made up", class_="balance")


def _fold(title: str, values: dict[str, Any]) -> Html:
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str) if values else "not known"
    return tag("details", tag("summary", title), tag("pre", text, dir="auto"))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def left_out_section(comparison: Comparison) -> Section:
    return Section(
        name="left-out",
        short="Left out",
        title="Left out",
        lead="Methods that could not run on these data, and what they would need.",
        content=draw_left_out(comparison),
    )


def data_section(comparison: Comparison) -> Section:
    return Section(
        name="data",
        short="Data",
        title="The data",
        lead="Answers that the model gave itself, split by question.",
        content=draw_data(comparison),
    )


def settings_section(comparison: Comparison) -> Section:
    return Section(
        name="settings",
        short="Settings",
        title="Settings and versions",
        lead="Everything needed to do it again.",
        content=join(draw_settings(comparison), draw_versions(comparison)),
    )
