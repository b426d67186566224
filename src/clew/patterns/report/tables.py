"""The tables of the report: metrics by class, held-out classes, excluded files, and where the
figures come from (how it was trained, all settings)."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from clew.base.texts import counted, list_some
from clew.pages.markup import Child, Html, join, tag, with_settings
from clew.pages.numbers import DASH, as_dict, as_number, decimals, duration, size, whole
from clew.patterns.photos.photo import SPLITS
from clew.patterns.report.results import Run, classes_without, percents

_MANY = 40  # with more rows, a table scrolls separately
_NAMED = 20
_MOST_FILES = 200
_SHARES = (
    ("recall", "recall", "share of this class's test photos that are classified correctly"),
    ("precision", "precision", "share of the photos predicted as this class that belong to it"),
    ("f1", "F1", "harmonic mean of precision and recall"),
)
_MISSING = (
    ("validation", "the best epoch was selected without them"),
    ("test", "their recall is unknown"),
)
_HELD_OUT = (
    ("AUROC", "1 is perfect, 0.5 is chance"),
    ("marked as unknown", "share of its test photos at the default threshold"),
    ("test photos", "photos of this class"),
)
_SETTINGS = (
    ("plan", "Hardware plan: every choice and measurement"),
    ("augment", "Augmentation"),
    ("loss", "Loss"),
    ("train", "Optimizer and schedule"),
    ("data", "Photos"),
)


def draw_plain(head: Sequence[Child], rows: Iterable[Sequence[Child]], kind: str) -> Html:
    """A table of texts; a cell that is a <td> or <th> already stays as it is."""
    cells = [[_cell("td", value) for value in row] for row in rows]
    table = tag(
        "table",
        tag("thead", tag("tr", [_cell("th", value) for value in head])),
        tag("tbody", [tag("tr", row) for row in cells]),
        class_=f"plain {kind}",
    )
    return tag("div", table, class_="scroll", tabindex="0")


def _cell(name: str, value: Child) -> Html:
    is_cell = isinstance(value, Html) and value.startswith(("<td", "<th"))
    return join(value) if is_cell else tag(name, value)


def _draw_sortable(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[str, Sequence[Html]]],
    *,
    groups: Html | None = None,
    kind: str = "",
) -> Html:
    """A table with one row per class, sorted by a click on a heading. `columns` are (title, hint):
    first the class, then numbers; `groups` is a row above them."""
    cells = [
        tag(
            "th",
            tag("button", title, type="button", data_tip=hint or None),
            scope="col",
            class_="number" if place else "name",
        )
        for place, (title, hint) in enumerate(columns)
    ]
    body = [
        tag("tr", tag("th", tag("bdi", name), scope="row", class_="name", data_value=name), numbers)
        for name, numbers in rows
    ]
    head = tag("thead", groups, tag("tr", cells))
    table = tag("table", head, tag("tbody", body), class_=f"sortable {kind}".strip())
    return tag("div", table, class_="scroll long" if len(rows) > _MANY else "scroll", tabindex="0")


def _number(shown: Child, value: float | None, exact: str = ".6g") -> Html:
    """A cell that is sorted by its exact value."""
    data = "" if value is None else f"{value:{exact}}"
    return tag("td", shown, class_="number", data_value=data)


def draw_classes(run: Run) -> Html:
    splits = [split for split in SPLITS if any(split in row for row in run.per_class)]
    groups = tag(
        "tr",
        tag("td"),
        tag("th", "test photos", colspan=len(_SHARES), scope="colgroup"),
        tag("th", "photos", colspan=len(splits), scope="colgroup"),
        class_="groups",
    )
    columns = [("class", ""), *((title, hint) for _, title, hint in _SHARES)]
    columns += [(split, f"photos of the {split} split") for split in splits]
    rows = []
    for row in run.per_class:
        cells = [_share(as_number(row.get(key))) for key, _, _ in _SHARES]
        counts = [as_number(row.get(split)) for split in splits]
        cells += [_number(whole(count), count, ".0f") for count in counts]
        rows.append((str(row["class"]), cells))
    table = _draw_sortable(columns, rows, groups=groups, kind="classes")
    return tag("div", [_describe_missing(run, *pair) for pair in _MISSING], table)


def _share(value: float | None) -> Html:
    """The figure with a bar beside it: a weak class is visible at a glance."""
    if value is None:
        return _number(DASH, None)
    bar = tag("i", tag("i", style=f"width:{100 * value:.1f}%"), class_="bar")
    return _number(tag("span", bar, tag("b", percents(value)), class_="balance"), value)


def _describe_missing(run: Run, split: str, effect: str) -> Html | None:
    names = classes_without(run, split)
    if not names:
        return None
    words = f"No {split} photos ({effect}): "
    return tag("p", words, tag("b", list_some(names, _NAMED)), ".", class_="empty", dir="auto")


def describe_unknown(run: Run) -> str:
    """A sentence on the AUROC, and one on the default threshold."""
    part = run.part("unknown")
    auroc, marked = as_number(part.get("auroc")), as_number(part.get("test_marked"))
    photos = as_number(part.get("validation_photos")) or 0
    first = (
        f"Photos of a held-out class are told from the others with an AUROC of {decimals(auroc)}. "
    )
    return (
        f"{first if auroc is not None else ''}At the default threshold of 0.05 in "
        f'"clew patterns identify", {percents(marked)} of the test photos are marked as unknown, '
        "although they show a known class. The distances are calibrated on "
        f"{counted(int(photos), 'validation photo')}."
    )


def draw_unknown(run: Run) -> Html:
    """One row per held-out class, the hardest first."""
    found = run.part("unknown").get("held_out_classes")
    rows = []
    for row in map(as_dict, found if isinstance(found, list) else ()):
        auroc, marked, photos = (as_number(row.get(key)) for key in ("auroc", "found", "photos"))
        if auroc is None:
            continue
        shown = (decimals(auroc), percents(marked), whole(photos))
        numbers = [_number(*pair) for pair in zip(shown, (auroc, marked, photos), strict=True)]
        rows.append((auroc, str(row.get("class")), numbers))
    rows.sort(key=lambda row: row[0])
    columns = [("held-out class", ""), *_HELD_OUT]
    return _draw_sortable(columns, [row[1:] for row in rows]) if rows else join()


def draw_excluded(run: Run) -> Html:
    kinds = run.excluded_kinds
    # Rare kinds come first: thousands of one kind would hide them.
    rarest = sorted(run.excluded, key=lambda one: kinds.get(one.kind, 0))
    rows = [
        (tag("bdi", one.name), tag("bdi", one.label or DASH), one.kind, one.reason)
        for one in rarest[:_MOST_FILES]
    ]
    more = len(rarest) - len(rows)
    rest = f"{counted(more, 'more file')}: excluded.csv beside this page has all of them."
    return tag(
        "div",
        _facts((kind, f"{count:,}") for kind, count in kinds.items()),
        draw_plain(("file", "class", "what", "why"), rows, "files") if rows else None,
        tag("p", rest, class_="empty") if more else None,
    )


def _facts(facts: Iterable[tuple[str, str]]) -> Html:
    spans = [tag("span", f"{name} ", tag("b", value, dir="auto")) for name, value in facts]
    return tag("p", spans, class_="facts")


def draw_training_facts(run: Run) -> Html:
    epochs, best = whole(run.figure("epochs_run")), run.figure("best_epoch")
    wait = run.figure("data_wait_share")
    splits = as_dict(run.part("data").get("splits"))
    facts = {
        "network": _plain(run.raw.get("network")),
        "parameters": whole(run.figure("parameters")),
        "image size": f"{whole(run.figure('image_size'))} px",
        "photos": ", ".join(f"{name} {_plain(count)}" for name, count in splits.items()),
        "epochs": epochs if best is None else f"{epochs} (epoch {best:.0f} was kept)",
        "duration": duration(run.figure("seconds")),
        "photos per second": whole(run.figure("images_per_second")),
        "waiting for data": "" if wait is None else f"{100 * wait:.1f}%",
        "peak memory": size(run.figure("peak_memory_bytes")),
        "started from": _plain(run.raw.get("started_from")),
        "seed": _plain(run.raw.get("seed")),
    }
    known = ((name, value) for name, value in facts.items() if value not in ("", DASH))
    return tag("div", _facts(known), _draw_reasons(run))


def _draw_reasons(run: Run) -> Html | None:
    """The choices of the hardware plan with their reasons."""
    plan = run.part("plan")
    rows = [
        (
            tag("th", name.replace("_", " "), scope="row"),
            _plain(plan.get(name)),
            with_settings(str(reason)),
        )
        for name, reason in as_dict(plan.get("reasons")).items()
        if name in plan
    ]
    return draw_plain(("choice", "value", "why"), rows, "plan") if rows else None


def draw_settings(run: Run) -> Html:
    folds = [_fold(title, run.raw[name]) for name, title in _SETTINGS if run.raw.get(name)]
    versions = [(name, _plain(value)) for name, value in run.part("versions").items()]
    return tag("div", folds, _facts(versions) if versions else None)


def _fold(title: str, values: Any) -> Html:
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str)
    return tag("details", tag("summary", title), tag("pre", text, dir="auto"))


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
