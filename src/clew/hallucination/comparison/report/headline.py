"""What the comparison found: sentences derived from the figures, and the key figures."""

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    Comparison,
    MethodResult,
    color_of,
)
from clew.pages.markup import Html, tag
from clew.pages.numbers import as_dict, as_number, counted, decimals, interval_text

RIVALS = (
    ("perplexity", "perplexity"),
    ("length", "answer length alone"),
    ("category", "category alone"),
    ("text", "the text alone"),
)
_SIGNIFICANT = 0.05
# The comparison's own sentences that the headline repeats.
_SAID_ABOVE = ("best", "baselines")


def tell_headline(comparison: Comparison) -> str:
    """The best method on validation, against what it must beat."""
    best, sets = comparison.best, as_dict(comparison.raw.get("leave_one_out")).get("sets")
    if best.test_auroc is None:
        return f"{best.title} was best on validation; its test AUROC is unknown."
    if not comparison.has_best:
        return (
            f"There are too few answers to say which method is best. {best.title} reaches an AUROC "
            f"of {_figures(best)}{tell_where(comparison)}."
        )
    if best.interval and best.interval[0] <= CHANCE:
        reached = (
            f"{best.title} is not shown to detect hallucinated answers better than chance "
            f"(AUROC {_figures(best)}){tell_where(comparison)}"
        )
    elif isinstance(sets, list):
        reached = (
            f"On question sets that it was not trained on, {best.title} detects hallucinated "
            f"answers with a mean AUROC of {_figures(best)} over {counted(len(sets), 'set')}"
        )
    else:
        where = tell_where(comparison) if is_transfer(comparison) else ""
        reached = (
            f"{best.title} detects hallucinated answers with an AUROC of {_figures(best)}{where}"
        )
    if not comparison.has_enough_tests:
        return f"{reached}. There are too few answers to compare methods."
    return f"{reached}{_tell_rivals(_sort_rivals(comparison))}"


def is_transfer(comparison: Comparison) -> bool:
    """Whether the table is of one question set that was not trained on."""
    data = comparison.part("data")
    return bool(data.get("train_on")) and data.get("train_on") != data.get("test_on")


def tell_where(comparison: Comparison) -> str:
    """Which questions the table is about; of a transfer, both sets."""
    data = comparison.part("data")
    if comparison.raw.get("leave_one_out"):
        return f" on question sets not trained on: {data.get('name')}"
    if is_transfer(comparison):
        return f", trained on {data.get('train_on')} and tested on {data.get('test_on')}"
    folds = as_number(as_dict(comparison.raw.get("folds")).get("count"))
    within = "" if folds is None else f", in {folds:.0f} folds"
    return f" on {data.get('name') or comparison.folder.name}{within}"


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
    return [_tell_basis(comparison), *told]


def _figures(best: MethodResult) -> str:
    return f"{decimals(best.test_auroc)} {interval_text(best.interval)}".rstrip()


def _tell_basis(comparison: Comparison) -> str:
    test, methods = comparison.test, len(comparison.methods)
    chosen = ""
    if methods > 1 and comparison.has_best:
        chosen = f"chosen from {methods:,} methods on {_the_split(comparison)} and "
    return (
        f"It was {chosen}measured on {counted(len(test), 'test answer')}, "
        f"{int(test.labels.sum()):,} of them hallucinated.{_tell_seeds(comparison.best)}"
    )


def _the_split(comparison: Comparison) -> str:
    on = comparison.chosen_on
    return "the validation split" if on == "validation" else on


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


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def draw_tiles(comparison: Comparison) -> Html:
    """The best method, and beside it what it must beat."""
    rivals = [comparison.find(name) for name, _ in RIVALS]
    others = [method for method in rivals if method and method is not comparison.best]
    words = f"best on {comparison.chosen_on}" if comparison.has_best else "highest on validation"
    tiles = [_tile(comparison.best, words, is_best=True)]
    unread = "baseline: does not use the model"
    about = {"perplexity": "no training needed"}
    tiles += [_tile(method, about.get(method.name, unread)) for method in others]
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
