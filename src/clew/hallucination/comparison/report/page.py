"""report.html: what a comparison found, its sections in reading order, and where the figures come
from; written with the figures as PNGs."""

import json
import logging
from importlib.resources import files
from pathlib import Path
from typing import Any

from clew.hallucination.comparison.report import answers, curves, methods, sets
from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
    read_comparison,
    report_section,
)
from clew.pages.markup import Html, Section, join, tag, with_settings, wrap_page
from clew.pages.numbers import (
    DASH,
    as_dict,
    as_number,
    counted,
    decimals,
    interval_text,
    percent,
    whole,
)
from clew.storage.writing import replace_file
from clew.version import __version__

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
PICTURES = (
    *("methods", "roc", "risk_coverage", "calibration", "layers", "losses"),
    *("agreement", "categories", "left_out", "transfer"),
)
_PIXELS = 2.0  # of a PNG per pixel of the page
_KIND = "comparison of hallucination detectors"
_RIVALS = {"perplexity": "no training needed"} | dict.fromkeys(
    ("length", "category", "text", "source_words"), "baseline: does not use the model"
)
_SPLITS = ("train", "validation", "test")
# Each label, with the name of its count in files of an earlier version of clew.
_LABELS = (("correct", "right"), ("hallucinated", "made_up"))
_SETTINGS = (
    ("capture", "Capture: model, prompt, generation"),
    ("settings", "Comparison: methods, seeds, training"),
    ("plans", "Hardware plans: how each network was trained on this machine"),
)
logger = logging.getLogger(__name__)


def write_report(folder: Path) -> Path:
    """Write report.html and return its path. The page is self-contained; the PNGs next to it are
    the same figures for slides and papers.

    Raises StoreError when the folder holds no finished comparison."""
    from clew.pages.png import draw_png  # matplotlib is slow to import

    comparison = read_comparison(folder)
    sections = make_sections(comparison)
    drawn = {name: rows for one in sections for name, rows in one.pictures.items()}
    (folder / FIGURES_FOLDER).mkdir(exist_ok=True)
    for name in PICTURES:  # those that an earlier report had are removed
        path = folder / FIGURES_FOLDER / f"{name}.png"
        if name in drawn:
            replace_file(path, draw_png(drawn[name], pixels=_PIXELS))
        else:
            path.unlink(missing_ok=True)
    # A lone surrogate, which JSON may hold, cannot be encoded: it becomes a question mark.
    page = make_page(comparison, sections).encode("utf-8", errors="replace")
    replace_file(folder / REPORT_FILE, page)
    logger.info("wrote %s and %d pictures", folder / REPORT_FILE, len(drawn))
    return folder / REPORT_FILE


def make_sections(comparison: Comparison) -> list[Section]:
    """All sections of the page in reading order; one with nothing to show carries the reason."""
    return [
        methods.rank_section(comparison),
        sets.left_out_section(comparison),
        methods.table_section(comparison),
        curves.curves_section(comparison),
        curves.layers_section(comparison),
        answers.mistakes_section(comparison),
        answers.agreement_section(comparison),
        answers.disputed_section(comparison),
        methods.categories_section(comparison),
        methods.tokens_section(comparison),
        sets.transfer_section(comparison),
        curves.losses_section(comparison),
        _excluded_section(comparison),
        report_section("data", _draw_data(comparison)),
        report_section("settings", _draw_settings(comparison)),
    ]


def make_page(comparison: Comparison, sections: list[Section] | None = None) -> str:
    """The whole HTML."""
    return wrap_page(
        title=f"clew: {comparison.best.title}{tell_where(comparison)}",
        header=_header(comparison),
        sections=sections or make_sections(comparison),
        footer=_footer(comparison),
        style=(files(__package__) / "style.css").read_text("utf-8"),
    )


def _header(comparison: Comparison) -> Html:
    model = comparison.part("capture").get("model")
    named = model.get("id") if isinstance(model, dict) else model
    where = tell_where(comparison).removeprefix(", ").removeprefix(" on ")
    of = [counted(len(comparison.methods), "method"), where, named]
    eyebrow = [tag("bdi", str(part)) for part in of if part]
    headline, basis = _tell_findings(comparison)
    return tag(
        "header",
        tag("p", tag("b", "clew"), tag("span", _KIND), eyebrow, class_="eyebrow"),
        tag("h1", headline, dir="auto"),
        tag("div", tag("p", basis), class_="lead"),
        _draw_tiles(comparison),
    )


def _tell_findings(comparison: Comparison) -> tuple[str, str]:
    """The sentences on the best method, and their basis; the figure of the methods has the rest."""
    best, test, count = comparison.best, comparison.test, len(comparison.methods)
    figures = f"{decimals(best.test_auroc)} {interval_text(best.interval)}".rstrip()
    reached = f"{best.title} reaches an AUROC of {figures}{tell_where(comparison)}."
    if best.test_auroc is None:
        reached = f"{best.title} was best on validation; its test AUROC is unknown."
    headline = str(comparison.part("findings").get("best", reached))
    chosen, on = "", comparison.chosen_on
    if count > 1 and comparison.has_best:
        on = "the validation split" if on == "validation" else on
        chosen = f"chosen from {count:,} methods on {on} and "
    seeds = int(as_number(best.row.get("seeds")) or 1)
    median = f" The figures are those of the seed with the median validation AUROC of {seeds:,}."
    basis = (
        f"It was {chosen}measured on {counted(len(test), 'test answer')}, "
        f"{int(test.labels.sum()):,} of them hallucinated.{median if seeds > 1 else ''}"
    )
    return headline, basis


def tell_where(comparison: Comparison) -> str:
    """Which questions the table is about; of a transfer, both sets."""
    data = comparison.part("data")
    train, test = data.get("train_on"), data.get("test_on")
    if comparison.raw.get("leave_one_out"):
        return f" on question sets not trained on: {data.get('name')}"
    if train and train != test:
        several = as_dict(comparison.raw.get("transfer")).get("train_on") or ()
        alone = " alone" if len(several) > 1 else ""
        return f", trained on {train}{alone} and tested on {test}"
    folds = as_number(comparison.part("folds").get("count"))
    within = "" if folds is None else f", in {folds:.0f} folds"
    return f" on {data.get('name') or comparison.folder.name}{within}"


def _draw_tiles(comparison: Comparison) -> Html:
    """The best method, and beside it what it must beat."""
    best = comparison.best
    rivals = [(comparison.find(name), told) for name, told in _RIVALS.items()]
    words = f"best on {comparison.chosen_on}" if comparison.has_best else "highest on validation"
    tiles = [_tile(best, words, " best")]
    tiles += [_tile(rival, told) for rival, told in rivals if rival and rival is not best]
    return tag("div", tiles, class_="tiles")


def _tile(method: MethodResult, words: str, more: str = "") -> Html:
    return tag(
        "div",
        tag("div", tag("bdi", method.title), class_="tile-name"),
        tag("div", decimals(method.test_auroc), class_="figure"),
        tag("div", interval_text(method.interval) or "no interval", class_="range"),
        tag("div", words, class_="muted"),
        class_=f"tile {color_of(method.family)}{more}",
        data_key=method.name,
    )


def _tell_choice(comparison: Comparison) -> str:
    if not comparison.raw.get("leave_one_out"):
        return "Nothing was chosen on the test answers."
    return (
        "No method was fitted or calibrated on the set that it is tested on; only the best method "
        f"was chosen on {comparison.chosen_on}, which are among the test answers."
    )


def _footer(comparison: Comparison) -> Html:
    best = comparison.best
    cite = (
        f"clew {__version__}, comparison of {counted(len(comparison.methods), 'method')} "
        f"{tell_where(comparison).removeprefix(',').strip()}, "
        f"{counted(len(comparison.test), 'test answer')}; best on {comparison.chosen_on}: "
        f"{best.title}."
    )
    if not comparison.has_best:
        cite = cite.partition("; best on")[0] + "."
    return tag(
        "footer",
        tag("p", tag("b", "Cite as: "), cite),
        tag(
            "p",
            "Hallucinated is the positive class. A risk is a method's probability that an answer "
            "is hallucinated, calibrated on validation answers. "
            f"{_tell_choice(comparison)} All metrics are in results.json and table.csv beside this "
            "page; the risks of every answer are in scores.arrow.",
        ),
    )


def _excluded_section(comparison: Comparison) -> Section:
    """The excluded methods, under the current key or that of an earlier version of clew."""
    found = comparison.raw.get("excluded") or comparison.raw.get("left_out") or ()
    rows = [as_dict(row) for row in found]
    items = [
        tag(
            "li",
            tag("b", str(row.get("title") or row.get("method") or "?")),
            ": ",
            tag("span", with_settings(str(row.get("reason", ""))), dir="auto"),
        )
        for row in rows
    ]
    return report_section("excluded", tag("ul", items, class_="excluded"), figure=rows)


def _draw_data(comparison: Comparison) -> Html:
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
    told = {name: data[name] for name in data if name not in _SPLITS and data[name] is not None}
    scrolled = tag("div", table, class_="scroll", tabindex="0")
    return tag("div", scrolled, _facts(told) if told else None)


def _split_row(name: str, counts: dict[str, Any]) -> Html:
    correct, hallucinated = (
        next((as_number(counts[name]) for name in names if name in counts), None)
        for names in _LABELS
    )
    total = None if correct is None or hallucinated is None else correct + hallucinated
    cells = [tag("td", whole(value), class_="number") for value in (total, correct, hallucinated)]
    balance: Html | str = DASH
    if hallucinated is not None and total:
        share = hallucinated / total
        bar = tag("i", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar")
        balance = tag("span", bar, f" {percent(share)}", class_="balance")
    return tag("tr", tag("th", name, scope="row"), cells, tag("td", balance))


def _draw_settings(comparison: Comparison) -> Html:
    folds = []
    for name, title in _SETTINGS:
        values = comparison.part(name)
        text = json.dumps(values, indent=2, ensure_ascii=False, default=str) if values else "none"
        folds.append(tag("details", tag("summary", title), tag("pre", text, dir="auto")))
    return join(tag("div", folds, class_="folds"), _facts(comparison.part("versions")))


def _facts(values: dict[str, Any]) -> Html:
    facts = []
    for name, value in values.items():
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        facts.append(tag("span", f"{name} ", tag("b", text, dir="auto")))
    return tag("p", facts or "unknown", class_="facts")
