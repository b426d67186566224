"""How well photos are recognized that show none of the classes."""

from typing import Any

from clew.pages.markup import Html, join, tag
from clew.pages.numbers import DASH, as_dict, as_number, counted, decimals, whole
from clew.patterns.report.headline import percents
from clew.patterns.report.run import Run

_MANY = 40


def unknown_rows(run: Run) -> list[dict[str, Any]]:
    """One row per held-out class, the hardest first."""
    found = run.part("unknown").get("held_out_classes")
    rows = [as_dict(row) for row in found] if isinstance(found, list) else []
    known = [row for row in rows if as_number(row.get("auroc")) is not None]
    return sorted(known, key=lambda row: as_number(row.get("auroc")) or 0.0)


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
    rows = unknown_rows(run)
    if not rows:
        return join()
    table = tag("table", _head(), tag("tbody", [_row(row) for row in rows]), class_="sortable")
    long = " long" if len(rows) > _MANY else ""
    return tag("div", table, class_=f"scroll{long}", tabindex="0")


def _head() -> Html:
    columns = (
        ("held-out class", "", "name"),
        ("AUROC", "1 is perfect, 0.5 is chance", "number"),
        ("marked as unknown", "share of its test photos at the default threshold", "number"),
        ("test photos", "photos of this class", "number"),
    )
    cells = [
        tag(
            "th",
            tag("button", title, type="button", data_tip=hint or None),
            scope="col",
            class_=kind,
        )
        for title, hint, kind in columns
    ]
    return tag("thead", tag("tr", cells))


def _row(row: dict[str, Any]) -> Html:
    name = str(row.get("class"))
    auroc, found, photos = (as_number(row.get(key)) for key in ("auroc", "found", "photos"))
    first = tag("th", tag("bdi", name), scope="row", class_="name", data_value=name)
    return tag(
        "tr",
        first,
        _number(decimals(auroc), auroc),
        _number(percents(found), found),
        _number(whole(photos), photos),
    )


def _number(text: str, value: float | None) -> Html:
    exact = "" if value is None else f"{value:.6g}"
    return tag("td", text or DASH, class_="number", data_value=exact)
