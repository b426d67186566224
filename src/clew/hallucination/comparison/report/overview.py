"""The first look: the great figures side by side, and every method on one axis."""

from collections.abc import Sequence

from clew.hallucination.comparison.report.comparison import FAMILIES, Comparison, MethodResult
from clew.hallucination.comparison.report.finding import RIVALS
from clew.pages.markup import Html, tag
from clew.pages.panels import IntervalRow, colour_of
from clew.pages.wording import chosen_text, decimals, interval_text


def draw_tiles(comparison: Comparison) -> Html:
    """The best, and beside it what it must beat."""
    rivals = [comparison.find(name) for name, _ in RIVALS]
    others = [method for method in rivals if method and method is not comparison.best]
    tiles = [_tile(comparison.best, "best on validation", is_best=True)]
    words = {"perplexity": "no training", "length": "no detection", "category": "no detection"}
    tiles += [_tile(method, words.get(method.name, "")) for method in others]
    return tag("div", tiles, class_="tiles")


def draw_method_rows(comparison: Comparison) -> tuple[IntervalRow, ...]:
    return tuple(_row(comparison, method) for method in comparison.methods)


def draw_family_key(comparison: Comparison) -> Html:
    """Which colour is which family."""
    present = {method.family for method in comparison.methods}
    families = [family for family in (*FAMILIES, "other") if family in present]
    keys = [
        tag("span", tag("i", class_="swatch"), family, class_=f"key {colour_of(family)}")
        for family in families
    ]
    hollow = tag("span", tag("i", class_="swatch hollow"), "on validation", class_="key")
    return tag("p", keys, hollow, class_="keys")


def draw_method_key(methods: Sequence[MethodResult]) -> Html:
    """Which colour is which method, where one of a family is shown."""
    keys = [
        tag(
            "span",
            tag("i", class_="swatch"),
            method.title,
            class_=f"key {colour_of(method.family)}",
        )
        for method in methods
    ]
    return tag("p", keys, class_="keys")


def _tile(method: MethodResult, words: str, *, is_best: bool = False) -> Html:
    return tag(
        "div",
        tag("div", tag("bdi", method.title), class_="tile-name"),
        tag("div", decimals(method.test_auroc), class_="figure"),
        tag("div", interval_text(method.interval) or "no interval", class_="range"),
        tag("div", words, class_="muted"),
        class_=f"tile {colour_of(method.family)}{' best' if is_best else ''}",
        data_method=method.name,
    )


def _row(comparison: Comparison, method: MethodResult) -> IntervalRow:
    text = f"{decimals(method.test_auroc)} {interval_text(method.interval)}".strip()
    chosen = chosen_text(method.chosen)
    tip = f"{method.title}: test AUROC {text}, validation {decimals(method.val_auroc)}"
    return IntervalRow(
        label=method.title,
        colour=colour_of(method.family),
        value=method.test_auroc,
        interval=method.interval,
        hollow=method.val_auroc,
        text=text,
        tip=f"{tip} ({chosen})" if chosen else tip,
        method=method.name,
        is_marked=method is comparison.best,
        series=method.family,
    )
