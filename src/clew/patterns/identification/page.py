"""identified.html: doubtful photos first, then class by class. One self-contained file, written
piece by piece: a page of thumbnails is large."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from PIL.Image import Image

from clew.base.texts import counted, whole_percent
from clew.pages.markup import Child, Html, html_head, join, tag
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    MADE_BY,
    PAGE_FILE,
    Group,
    Identified,
    Tally,
    read_entry,
    sheet_file,
)
from clew.patterns.identification.sheets import ContactSheets, as_data_address, make_thumbnails
from clew.storage.writing import replacing
from clew.version import __version__

_LEAST_SHOWN = 0.01
_PHOTOS = Html("<!-- photos -->")
_LABEL = 18  # characters of a class in the overview
_WIDTH_PROPERTY = "label"  # what style.css calls their width


def describe_counts(counts: dict[str, int]) -> str:
    """The headline: how many photos are identified, doubtful or unreadable."""
    usable = counts["photos"] - counts["faulty"]
    if not usable:
        text = f"None of the {counted(counts['photos'], 'photo')} can be read"
        return text if counts["photos"] > 1 else "The photo cannot be read"
    if not counts["doubtful"]:
        text = f"{counted(usable, 'photo')} identified, {'none' if usable > 1 else 'not'} doubtful"
    else:
        text = f"{counts['identified']:,} of {counted(usable, 'photo')} identified, "
        unknown = f" ({counts['unknown']:,} of them unknown)" if counts["unknown"] else ""
        is_all = counts["unknown"] == counts["doubtful"]
        text += f"{counts['doubtful']:,} doubtful{' and unknown' if is_all else unknown}"
    faulty = f", {counts['faulty']:,} cannot be read" if counts["faulty"] else ""
    return text + faulty


def draw_group(
    group: Group, photos: Iterable[tuple[Identified, Image | None]], threshold: float
) -> Iterator[Html]:
    """A heading, and a card per photo."""
    anchor = "unknown" if group.is_unknown else _anchor(group.label)
    heading = "Unknown" if group.is_unknown else group.label or "Doubtful"
    kind = "doubtful" if group.label is None else "class"
    yield Html(f'<section class="{kind}" id="{anchor}">')
    yield tag("h2", tag("bdi", heading), tag("span", f"{group.count:,}", class_="count"))
    yield tag("p", _describe(group, threshold), class_="dek")
    yield Html('<div class="photos">')
    for photo, picture in photos:
        yield _card(photo, picture)
    yield Html("</div></section>\n")


def draw_faults(photos: Iterable[Identified], count: int) -> Iterator[Html]:
    """Files that cannot be read, with the reason."""
    yield Html('<section class="faulty" id="faulty">')
    yield tag("h2", "Cannot be read", tag("span", f"{count:,}", class_="count"))
    yield Html("<table><thead><tr><th>photo</th><th>problem</th></tr></thead><tbody>")
    shown = 0
    for photo in photos:
        reason = photo.fault.reason if photo.fault else ""
        yield tag("tr", tag("td", tag("bdi", photo.name)), tag("td", reason))
        shown += 1
    yield Html("</tbody></table>")
    if shown < count:
        yield tag("p", f"{count - shown:,} more are in identified.csv.", class_="dek")
    yield Html("</section>\n")


def _fill_frame(
    settings: dict[str, Any], tally: Tally, sheets: Sequence[str], left_off: str
) -> tuple[str, str]:
    """The page before and after its photos."""
    counts, folder = tally.counts(), Path(settings["folder"]).name
    places = {"photos": settings["folder"], "model": settings["model"]}
    if settings["copied_to"]:
        places["copies, one folder per class"] = settings["copied_to"]
    headline = describe_counts(counts)
    values: dict[str, Child] = {
        "head": html_head(f"{folder}: {headline}", _package_text("style.css"), MADE_BY),
        "folder": folder,
        "headline": headline,
        "lead": _lead(settings, counts, sheets),
        "left_off": tag("p", left_off.replace("`", ""), class_="left-off") if left_off else "",
        "overview": _overview(counts, tally.class_counts()),
        "photos": _PHOTOS,
        "places": [(tag("dt", name), tag("dd", tag("bdi", it))) for name, it in places.items()],
        "made": f"Made by {MADE_BY}, clew {__version__}.",
        "script": _package_text("page.js"),
    }
    frame = _package_text("page.html").format(**{name: join(it) for name, it in values.items()})
    before, _, after = frame.partition(_PHOTOS)
    return before, after


def _lead(
    settings: dict[str, Any], counts: dict[str, int], sheets: Sequence[str]
) -> list[Html | str]:
    unknown = (
        ", or when it is unknown: farther from the training photos of every class than all but "
        f"{whole_percent(settings['unknown'])} of the validation photos"
    )
    words: list[Html | str] = [
        "A photo is doubtful when the confidence in its most likely class is below "
        f"{whole_percent(settings['threshold'])}{unknown if counts['unknown'] else ''}. "
        "All photos, one per line: ",
        tag("a", "identified.csv", href="identified.csv"),
        ", ",
        tag("a", "identified.json", href="identified.json"),
    ]
    for number, name in enumerate(sheets, 1):
        title = "contact sheet" if number == 1 else f"page {number}"
        words += [", " if number > 1 else ". For printing: ", tag("a", title, href=name)]
    return [*words, "."]


def _overview(counts: dict[str, int], class_counts: list[tuple[str, int]]) -> list[Html]:
    """A bar per class that links to its photos; classes without photos are only named."""
    unknown = counts["unknown"]
    rows: list[tuple[str | None, int]] = [(None, counts["doubtful"] - unknown), *class_counts]
    found = [(label, count) for label, count in rows if count]
    empty = [label for label, count in class_counts if not count]
    longest = max([1, *(count for label, count in found if label is not None)])
    widest = max([3, *(len(label or "doubtful") for label, _ in found)])
    bars = [_bar("unknown", unknown, longest, "unknown")] if unknown else []
    bars += [_bar(label, count, longest, _anchor(label)) for label, count in found]
    style = f"--{_WIDTH_PROPERTY}:{min(_LABEL, widest) * 0.62:.1f}em"
    parts = [tag("nav", bars, class_="overview", aria_label="Classes", style=style)]
    if empty:
        parts.append(tag("p", f"No photos identified as: {', '.join(empty)}.", class_="nowhere"))
    return parts


def _bar(label: str | None, count: int, longest: int, anchor: str) -> Html:
    filled = tag("i", style=f"width:{min(100, 100 * count / longest):.1f}%")
    parts = [
        tag("bdi", label or "doubtful", class_="name"),
        tag("span", filled, class_="track"),
        tag("span", f"{count:,}", class_="number"),
    ]
    is_class = anchor not in ("unknown", "doubtful")
    return tag("a", parts, class_="bar" if is_class else "bar doubtful", href=f"#{anchor}")


def _anchor(label: str | None) -> str:
    """An id of letters and digits only; the name of a class may hold anything."""
    return "doubtful" if label is None else f"class-{label.encode('utf-8', 'replace').hex()}"


def _describe(group: Group, threshold: float) -> str:
    order = "Least confident first." if group.count > 1 else ""
    if group.is_unknown:
        order = f"None of these classes: unlike the training photos of each. {order}"
    elif group.label is None:
        order = f"No class reaches a confidence of {whole_percent(threshold)}. {order}"
    if len(group.places) < group.count:
        order += f" {len(group.places):,} of {group.count:,} are shown."
    return order.strip()


def _card(photo: Identified, picture: Image | None) -> Html:
    inner: Html | str = tag("span", "photo missing", class_="gone")
    if picture is not None:
        address = as_data_address(picture)
        inner = tag("img", src=address, alt="", width=picture.width, height=picture.height)
    link = tag("a", inner, href=photo.path.absolute().as_uri(), class_="picture")
    caption = _guesses(photo.best) if photo.doubtful else _confidence(photo.best)
    name = tag("span", tag("bdi", photo.name), class_="file")
    guesses = [f"{label} {whole_percent(chance)}" for label, chance in photo.best]
    return tag(
        "figure",
        link,
        tag("figcaption", caption, name),
        title=f"{photo.name}: {', '.join(guesses)}",
        data_words=f"{photo.name} {photo.best[0][0]}",
    )


def _confidence(best: tuple[tuple[str, float], ...]) -> Html:
    """The confidence in its class, and the next class if it is at all likely."""
    other = None
    if len(best) > 1 and best[1][1] >= _LEAST_SHOWN:
        label, chance = best[1]
        other = tag("span", tag("bdi", label), f" {whole_percent(chance)}", class_="other")
    return tag("span", tag("b", whole_percent(best[0][1])), other, class_="confidence")


def _guesses(best: tuple[tuple[str, float], ...]) -> list[Html]:
    return [
        tag(
            "span",
            tag("i", style=f"width:{100 * chance:.1f}%"),
            tag("bdi", label),
            tag("b", whole_percent(chance)),
            class_="guess",
        )
        for label, chance in best
    ]


def _package_text(name: str) -> Html:
    """Our own style and script, which are markup already."""
    return Html(files("clew.patterns.identification").joinpath(name).read_text(encoding="utf-8"))


_MOST_FAULTS = 500


def draw_results(
    out: Path, settings: dict[str, Any], tally: Tally, *, thumbnails: int
) -> tuple[list[Path], str]:
    """The contact sheets, and a sentence about photos that are not shown ("" if all are).
    `settings` and the photos are those of identified.json."""
    groups = tally.groups(thumbnails)
    shown = sum(len(group.places) for group in groups)
    title = f"{Path(settings['folder']).name}: {describe_counts(tally.counts())}"
    sheets = ContactSheets(out, title=title, photos=shown)
    names = [sheet_file(page) for page in range(sheets.pages)]
    left_off = _describe_hidden(groups, shown)
    before, after = _fill_frame(settings, tally, names, left_off)
    with (
        (out / IDENTIFIED_FILE).open("rb") as lines,
        replacing(out / PAGE_FILE) as page,
    ):
        page.write(before.encode("utf-8", "replace"))
        for piece in _pieces(settings["threshold"], tally, groups, sheets, lines):
            page.write(piece.encode("utf-8", "replace"))
        page.write(after.encode("utf-8", "replace"))
    sheets.end()
    return [out / name for name in names], left_off


def _pieces(
    threshold: float, tally: Tally, groups: list[Group], sheets: ContactSheets, lines: IO[bytes]
) -> Iterator[Html]:
    for group in groups:
        if len(group.places):
            photos = (read_entry(lines, place) for place in group.places.tolist())
            pictures = make_thumbnails(photos)
            yield from draw_group(group, _on_sheets(pictures, sheets), threshold)
    if faulty := tally.counts()["faulty"]:
        places = tally.faulty(_MOST_FAULTS).tolist()
        yield from draw_faults((read_entry(lines, place) for place in places), faulty)


def _on_sheets(
    pictures: Iterator[tuple[Identified, Image | None]], sheets: ContactSheets
) -> Iterator[tuple[Identified, Image | None]]:
    for photo, picture in pictures:
        sheets.add(photo, picture)
        yield photo, picture


def _describe_hidden(groups: list[Group], shown: int) -> str:
    total = sum(group.count for group in groups)
    if shown == total:
        return ""
    if not shown:
        return (
            f"No thumbnails were requested: {IDENTIFIED_FILE} lists all {counted(total, 'photo')}."
        )
    return (
        f"Thumbnails show {shown:,} of {counted(total, 'photo')}, the least confident of each "
        f"class; {IDENTIFIED_FILE} and identified.csv list all. To show all, set "
        f"the number of thumbnails to {total}."
    )
