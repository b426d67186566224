"""report.html: the findings with their photos, the classes that overlap, and the map of the set."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from PIL import Image, ImageOps

from clew.base.texts import counted, whole_percent
from clew.pages.markup import Html, Section, make_section, tag, wrap_page
from clew.patterns.cache.samples import read_images
from clew.patterns.cleaning.findings import KINDS, PACKAGE, REPORT, TITLES, Finding, Findings
from clew.patterns.cleaning.search import LookedAt
from clew.patterns.photo_map.block import MOST_THUMBNAILS, Coloring, draw_map, draw_sheet, map_style
from clew.patterns.photo_map.layout import choose_shown, lay_out
from clew.patterns.photos.decode import open_photo
from clew.patterns.photos.opening import PhotoError
from clew.patterns.report.gallery import as_data_url
from clew.storage.writing import replace_file
from clew.version import __version__

_MOST_CARDS, _MOST_MAPPED = 48, 2_000
_SIDE = 176


def write_clean_report(folder: Path, looked: LookedAt, findings: Findings) -> Path:
    """Write report.html, pictures included; returns its path."""
    page = wrap_page(
        title=f"clew: findings in {findings.data.name}",
        header=_header(findings),
        sections=[*_sections(findings), _map_section(looked, findings)],
        footer=tag("footer", tag("p", f"Made by clew patterns clean, clew {__version__}.")),
        style=files("clew.patterns.report").joinpath("style.css").read_text(encoding="utf-8")
        + map_style(),
    )
    replace_file(folder / REPORT, page.encode("utf-8", "replace"))
    return folder / REPORT


def _header(findings: Findings) -> Html:
    photos = counted(findings.photos, "photo")
    classes = counted(len(findings.classes), "class", "classes")
    found = counted(len(findings), "finding")
    return tag(
        "header",
        tag("p", tag("b", "clew"), " ", tag("bdi", findings.data.name), class_="eyebrow"),
        tag("h1", f"{found} in {photos} of {classes}"),
        tag(
            "p",
            "Nothing was changed. ",
            tag("a", "findings.csv", href="findings.csv"),
            " and ",
            tag("a", "findings.json", href="findings.json"),
            " have all findings.",
            class_="lead",
        ),
        [tag("p", note, class_="empty") for note in findings.notes],
    )


def _sections(findings: Findings) -> list[Section]:
    found = {kind: [one for one in findings if one.kind == kind] for kind in KINDS}
    return [
        make_section(PACKAGE, kind, _cards(findings, some), figure=some, count=f"{len(some):,}")
        for kind, some in found.items()
    ]


def _cards(findings: Findings, found: Sequence[Finding]) -> Html:
    shown = found[:_MOST_CARDS]
    rest = len(found) - len(shown)
    return tag(
        "div",
        _overlaps(findings) if found and found[0].kind == "overlap" else None,
        tag("div", [_card(findings.data, one) for one in shown], class_="photos small"),
        tag("p", f"{rest:,} more are in findings.csv.", class_="empty") if rest else None,
    )


def _overlaps(findings: Findings) -> Html:
    rows = [
        tag(
            "tr",
            tag("td", tag("bdi", one.first)),
            tag("td", tag("bdi", one.second)),
            tag("td", whole_percent(one.share)),
            tag("td", f"{one.photos:,}"),
        )
        for one in findings.overlaps
    ]
    heads = [tag("th", name) for name in ("class", "class", "share of both", "photos")]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))


def _card(data: Path, finding: Finding) -> Html:
    names = [name for name in (finding.name, finding.other) if name is not None]
    reason = f"{finding.reason[0].upper()}{finding.reason[1:]}."
    return tag(
        "article",
        tag("div", [_figure(data / name, name) for name in names], class_="strip"),
        tag("div", tag("span", reason), class_="verdict"),
        tag("div", tag("bdi", finding.name), class_="file", title=finding.name),
        class_="photo-card",
    )


def _figure(path: Path, name: str) -> Html:
    try:
        photo = open_photo(path, at_least=_SIDE)
    except PhotoError as error:
        return tag("figure", tag("figcaption", f"cannot be shown: {error.reason}"))
    small = ImageOps.contain(photo, (_SIDE, _SIDE), Image.Resampling.LANCZOS)
    image = tag("img", src=as_data_url(small), alt=f"photo {name}", loading="lazy")
    return tag("figure", image)


def _map_section(looked: LookedAt, findings: Findings) -> Section:
    of_name = {photo.name: place for place, photo in enumerate(looked.photos)}
    about = {
        of_name[finding.name]: finding
        for finding in reversed(findings.findings)
        if finding.name in of_name
    }
    shown = choose_shown(looked.labels, _MOST_MAPPED, first=sorted(about)[:_MOST_MAPPED])
    positions = lay_out(looked.features.embedding[shown])
    found = [about.get(place) for place in shown.tolist()]
    groups = ("nothing found", *(TITLES[kind].lower() for kind in KINDS))
    chosen = shown[:MOST_THUMBNAILS].tolist()
    images = (image for some in read_images(looked.cached, chosen) for image in some)
    drawn = draw_map(
        positions,
        [looked.photos[place].name for place in shown.tolist()],
        [
            Coloring(name="class", groups=looked.folder.classes, of=looked.labels[shown].tolist()),
            Coloring(
                name="finding",
                groups=groups,
                of=[0 if one is None else 1 + KINDS.index(one.kind) for one in found],
                colors=("gray", "red", "gold", "green", "blue", "#8a5bb5", "#c76b2a"),
            ),
        ],
        notes=["" if one is None else one.reason for one in found],
        sheet=draw_sheet(images, len(chosen)),
    )
    return make_section(PACKAGE, "map", drawn, count=counted(len(shown), "photo"))
