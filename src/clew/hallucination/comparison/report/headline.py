"""What the comparison found: sentences derived from the figures, and the key figures."""

from collections.abc import Iterable

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    Comparison,
    MethodResult,
    color_of,
)
from clew.metrics import Difference, compare_paired
from clew.pages.figures import as_dict, as_number, counted, decimals, interval_text, p_text, signed
from clew.pages.markup import Html, tag

# By what they read. A method in neither group does not count here.
ONE_LAYER = frozenset({"linear_probe", "linear_probe_middle", "saplma"})
ALL_LAYERS = frozenset({"linear_probe_pca", "lstm", "act_vit"})
RIVALS = (
    ("perplexity", "perplexity"),
    ("length", "answer length alone"),
    ("category", "category alone"),
)
_SIGNIFICANT = 0.05
# The comparison's own sentences that the headline repeats.
_SAID_ABOVE = ("best", "baselines")


def tell_headline(comparison: Comparison) -> str:
    """The best method on validation, against what it must beat."""
    best = comparison.best
    if best.test_auroc is None:
        return f"{best.title} was best on validation; its test AUROC is unknown."
    if best.interval and best.interval[0] <= CHANCE:
        reached = (
            f"{best.title} is not shown to detect hallucinated answers better than chance "
            f"(AUROC {_figures(best)})"
        )
    else:
        reached = f"{best.title} detects hallucinated answers with an AUROC of {_figures(best)}"
    return f"{reached}{_tell_rivals(_sort_rivals(comparison))}"


def _tell_rivals(rivals: dict[str, list[str]]) -> str:
    if rivals["ahead"]:
        return f". It does not beat {_listed(rivals['ahead'])}."
    below, near = rivals["below"], rivals["near"]
    told = f", significantly better than {_listed(below)}." if below else "."
    if near:
        told += f" The difference from {_listed(near)} is not statistically significant."
    return told


def tell_details(comparison: Comparison) -> list[str]:
    """The sentences below the headline: the data, its limits, and whether structure helped."""
    findings = as_dict(comparison.raw.get("findings"))
    told = [str(sentence) for about, sentence in findings.items() if about not in _SAID_ABOVE]
    return [_tell_basis(comparison), *told, *tell_layers(comparison)]


def tell_layers(comparison: Comparison) -> list[str]:
    """Whether reading all layers' states beat reading one layer's."""
    subject = "Reading the states of all layers"
    return _tell_contest(comparison, ALL_LAYERS, ONE_LAYER, subject=subject)


def _figures(best: MethodResult) -> str:
    return f"{decimals(best.test_auroc)} {interval_text(best.interval)}".rstrip()


def _tell_basis(comparison: Comparison) -> str:
    test, methods = comparison.test, len(comparison.methods)
    chosen = f"chosen from {methods:,} methods on the validation split and " if methods > 1 else ""
    return (
        f"It was {chosen}measured on {counted(len(test), 'test answer')}, "
        f"{int(test.labels.sum()):,} of them hallucinated.{_tell_seeds(comparison.best)}"
    )


def _tell_seeds(best: MethodResult) -> str:
    seeds = int(as_number(best.row.get("seeds")) or 1)
    if seeds < 2:
        return ""
    return f" The figures are those of the seed with the median validation AUROC of {seeds:,}."


def _sort_rivals(comparison: Comparison) -> dict[str, list[str]]:
    """The rivals by where they stand relative to the best: below, near or ahead (see `_place`)."""
    rivals: dict[str, list[str]] = {"below": [], "near": [], "ahead": []}
    best = comparison.best
    for name, words in RIVALS:
        rival = comparison.find(name)
        if rival is None or rival is best or rival.test_auroc is None:
            continue
        rivals[_place(rival, best)].append(f"{words} ({decimals(rival.test_auroc)})")
    return rivals


def _place(rival: MethodResult, best: MethodResult) -> str:
    """Where a rival stands: "below" if the intervals do not overlap, or if they do but the paired
    test is significant."""
    if (rival.test_auroc or 0.0) >= (best.test_auroc or 0.0):
        return "ahead"
    if rival.interval and best.interval and rival.interval[1] < best.interval[0]:
        return "below"
    p_value = as_number(as_dict(rival.row.get("versus_best")).get("p_value"))
    return "below" if p_value is not None and p_value < _SIGNIFICANT else "near"


def _tell_contest(
    comparison: Comparison, ours: Iterable[str], others: Iterable[str], *, subject: str
) -> list[str]:
    """A sentence that compares the best of two groups of methods; empty if one group is missing or
    all answers have one label."""
    first, second = (_best_of(comparison, names) for names in (set(ours), set(others)))
    if first is None or second is None or not comparison.test.has_both_classes:
        return []
    risks = comparison.test.risks
    found = compare_paired(comparison.test.labels, risks[first.name], risks[second.name])
    return [f"{subject} {_verdict(found)}: {_tell_difference(first, second, found)}."]


def _best_of(comparison: Comparison, names: set[str]) -> MethodResult | None:
    """The best of these methods by validation AUROC; the test split is never used to choose."""
    kin = [method for method in comparison.scored if method.name in names]
    return max(kin, key=lambda method: method.val_auroc or 0.0, default=None)


def _verdict(found: Difference) -> str:
    if found.p_value >= _SIGNIFICANT:
        return "made no statistically significant difference"
    return "helped" if found.difference > 0 else "lowered the AUROC"


def _tell_difference(first: MethodResult, second: MethodResult, found: Difference) -> str:
    interval = f"[{signed(found.low)}, {signed(found.high)}]"
    return (
        f"{first.title} reaches {decimals(first.test_auroc)}, {second.title} "
        f"{decimals(second.test_auroc)} (difference {signed(found.difference)} {interval}, "
        f"{p_text(found.p_value)})"
    )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def draw_tiles(comparison: Comparison) -> Html:
    """The best method, and beside it what it must beat."""
    rivals = [comparison.find(name) for name, _ in RIVALS]
    others = [method for method in rivals if method and method is not comparison.best]
    tiles = [_tile(comparison.best, "best on validation", is_best=True)]
    unread = "baseline: does not use the model"
    words = {"perplexity": "no training needed", "length": unread, "category": unread}
    tiles += [_tile(method, words.get(method.name, "")) for method in others]
    return tag("div", tiles, class_="tiles")


def _tile(method: MethodResult, words: str, *, is_best: bool = False) -> Html:
    return tag(
        "div",
        tag("div", tag("bdi", method.title), class_="tile-name"),
        tag("div", decimals(method.test_auroc), class_="figure"),
        tag("div", interval_text(method.interval) or "no interval", class_="range"),
        tag("div", words, class_="muted"),
        class_=f"tile {color_of(method.family)}{' best' if is_best else ''}",
        data_key=method.name,
    )
