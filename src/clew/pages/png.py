"""Figures as PNGs, for slides and papers: draws the SVG of a page with matplotlib, in the page's
own style as on a light screen. So a figure is described once."""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib import rc_context, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Transform

from clew.pages.markup import Html

Node = tuple[str, frozenset[str]]  # the name and the classes of an element
_POINT = 0.75  # of a pixel of the page, in points of 1/72 inch
_NARROWER = 0.92  # matplotlib's font is wider than those that the figures are laid out for
_LETTER, _MOST_LINES = 0.56, 8  # the width of a letter by its height; lines of a text block
_MARGIN, _GAP = 20.0, 14.0
_INHERITED = re.compile(r"--|fill|stroke|font-|text-anchor|color|paint-order")
_BLOCKS = frozenset(
    {"svg", "p", "div", "h1", "h2", "h3", "figure", "article", "dl", "section", "ul", "header"}
)
_COMPOUND = re.compile(r"([a-z0-9]*)((?:\.[\w-]+)*)((?::not\(\.[\w-]+\))*)")
_WIDE = frozenset({"x", "cx", "x1", "x2", "width"})  # lengths whose percentages are of the width
_ANCHORS = {"end": "right", "middle": "center"}
_CODES = {"M": Path.MOVETO, "L": Path.LINETO, "C": Path.CURVE4}


def draw_png(
    rows: Sequence[Sequence[Html]],
    *,
    pixels: float,
    head: Html | None = None,
    style: str | None = None,
    software: str | None = None,
) -> bytes:
    """Draw the text blocks and SVGs of some markup, in rows of columns below `head`. `pixels` are
    those of the PNG per pixel of the page; `style` is CSS, by default that of all reports."""
    sheet = style if style is not None else (files("clew.pages") / "style.css").read_text("utf-8")
    drawing = _Drawing(f"h1, h2, h3 {{ font-weight: 700; }} {sheet}")
    markup = "".join(cell for row in rows for cell in row)
    widths = re.findall(r'viewBox="0 0 ([\d.]+)', markup)
    column_width = max(map(float, widths), default=540.0)
    step = column_width + 2 * _GAP
    width = step * max(map(len, rows)) - 2 * _GAP + 2 * _MARGIN
    top = drawing.lay(head, _MARGIN, _MARGIN, width - 2 * _MARGIN) if head else _MARGIN
    for row in rows:
        ends = [
            drawing.lay(cell, _MARGIN + place * step, top, column_width)
            for place, cell in enumerate(row)
        ]
        top = max(ends, default=top)
    return drawing.print(width, top - _GAP + _MARGIN, pixels, software)


class _StyleSheet:
    """The rules for tags, classes, `:not(.class)` and descendants. What only a screen needs is
    skipped: rules for dark or narrow ones, and for what is pointed at."""

    def __init__(self, css: str) -> None:
        plain = re.sub(r"/\*.*?\*/|@[^{]+\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", css, flags=re.S)
        rules = []
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", plain):
            for selector in selectors.replace(":root", ".root").split(","):
                parts = [_COMPOUND.fullmatch(part) for part in selector.split()]
                if all(parts):
                    found = [part.groups() for part in parts if part]
                    rules.append((selector.count("."), found, _declarations(body)))
        self._rules = sorted(rules, key=lambda rule: rule[0])
        self._declared = cache(self._find_declared)

    def apply(
        self, element: Element, above: tuple[Node, ...], inherited: Mapping[str, str]
    ) -> None:
        """Write what an element and all in it inherit and what the rules say into their
        attributes."""
        nodes = (*above, (element.tag, frozenset(element.get("class", "").split())))
        opacity = float(inherited.get("opacity", 1))
        style = {name: value for name, value in inherited.items() if _INHERITED.match(name)}
        style |= element.attrib | self._declared(nodes) | _declarations(element.get("style", ""))
        style["opacity"] = str(opacity * float(style.get("opacity", 1)))
        element.attrib.update(style)
        for child in element:
            self.apply(child, nodes, style)

    def _find_declared(self, nodes: tuple[Node, ...]) -> dict[str, str]:
        """What the rules say about the last of an element's ancestors and itself."""
        found: dict[str, str] = {}
        for _, (*above, last), declarations in self._rules:
            ancestors = reversed(nodes[:-1])
            if _is_of(nodes[-1], last) and all(
                any(_is_of(node, part) for node in ancestors) for part in reversed(above)
            ):
                found |= declarations
        return found


def _declarations(body: str) -> dict[str, str]:
    """Without sizes, which are those of a screen."""
    pairs = (line.partition(":") for line in body.split(";") if ":" in line)
    found = {name.strip(): value.replace("!important", "").strip() for name, _, value in pairs}
    return {name: value for name, value in found.items() if name not in ("width", "height")}


def _is_of(node: Node, compound: Sequence[str]) -> bool:
    (name, classes), (wanted, has, lacks) = node, compound
    return (
        wanted in ("", name)
        and classes.issuperset(has.split(".")[1:])
        and classes.isdisjoint(re.findall(r"\.([\w-]+)", lacks))
    )


class _Drawing:
    """Lays out markup from top to bottom, in pixels of the page."""

    def __init__(self, css: str) -> None:
        self._sheet = _StyleSheet(css)
        self._artists: list[Artist] = []
        self._flip = Affine2D()  # known when the height is

    def lay(self, markup: Html, left: float, top: float, width: float) -> float:
        """Draw the markup, and return where it ends."""
        # What is no valid text, such as half of a surrogate pair, becomes a question mark.
        text = f'<div class="root print">{markup}</div>'.encode("utf-8", "replace")
        root = ElementTree.fromstring(text)
        for details in root.iter("details"):  # whose summary repeats how it starts
            details[:] = [child for child in details if child.tag != "summary"]
        self._sheet.apply(root, (), {})
        return self._lay(root, left, top, width)

    def _lay(self, element: Element, left: float, top: float, width: float) -> float:
        if element.get("display") == "none":
            return top
        if element.tag == "svg":
            wide, high = _extent(element)
            scale = width / wide if "width" not in element.attrib else min(1.0, width / wide)
            for child in element:
                self._draw(child, Affine2D().scale(scale).translate(left, top), (wide, high))
            return top + scale * high + _GAP
        if any(one.tag in _BLOCKS for one in element.iter() if one is not element):
            for child in element:
                top = self._lay(child, left, top, width)
            return top
        words = "  ".join(part.strip() for part in element.itertext() if part.strip())
        return self._write_block(words, element.attrib, left, top, width) if words else top

    def _write_block(
        self, words: str, style: Mapping[str, str], left: float, top: float, width: float
    ) -> float:
        size = _size(style.get("font-size"), 14.0)
        lines = textwrap.wrap(words, max(10, int(width / (_LETTER * size))))
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], "..."]
        colored = {**style, "fill": style.get("color", "var(--ink)")}
        for line in lines:
            top += 1.35 * size
            self._write(line, colored, Affine2D().translate(left, top), size)
        return top + 0.5 * size

    def _draw(self, element: Element, place: Transform, extent: tuple[float, float]) -> None:
        if element.tag == "title" or element.get("display") == "none":
            return
        if turned := re.fullmatch(r"rotate\((\S+) (\S+) (\S+)\)", element.get("transform", "")):
            angle, x, y = map(float, turned.groups())
            place = Affine2D().rotate_deg_around(x, y, angle) + place
        x, y = (_length(element, name, extent) for name in "xy")
        at = Affine2D().translate(x, y) + place
        if element.tag == "svg":
            place, extent = at, _extent(element)
        elif element.tag == "text":
            size = _size(element.get("font-size"), 12.0)
            self._write("".join(element.itertext()), element.attrib, at, size)
            return
        elif (outline := _outline(element, extent)) is not None:
            self._fill(outline, element.attrib, place)
        for child in element:
            self._draw(child, place, extent)

    def _fill(self, outline: Path, style: Mapping[str, str], place: Transform) -> None:
        scale = _POINT * place.get_matrix()[1, 1]
        width = scale * _size(style.get("stroke-width"), 1.0)
        lengths = re.findall(r"[\d.]+", style.get("stroke-dasharray", ""))
        patch = PathPatch(
            outline,
            transform=place + self._flip,
            facecolor=_color(style, "fill", "#000"),
            edgecolor=_color(style, "stroke", "none"),
            linewidth=width if style.get("stroke", "none") != "none" else 0,
            linestyle=(0, [scale * float(length) for length in lengths]) if lengths else "solid",
            capstyle="round" if style.get("stroke-linecap") == "round" else "butt",
            joinstyle="round",
        )
        self._artists.append(patch)

    def _write(self, words: str, style: Mapping[str, str], place: Transform, size: float) -> None:
        (a, b), (c, d), (x, y) = place.get_matrix()[:2].T.tolist()
        text = Text(
            x,
            y,
            words,
            color=_color(style, "fill", "#000"),
            size=_POINT * _NARROWER * (c * c + d * d) ** 0.5 * size,
            weight="bold" if style.get("font-weight", "400") >= "600" else "normal",
            style="italic" if style.get("font-style") == "italic" else "normal",
            ha=_ANCHORS.get(style.get("text-anchor", ""), "left"),
            rotation=0 if b >= 0 else 45 if a > 0.1 else 90,
            rotation_mode="anchor",
            transform=self._flip,
            parse_math=False,  # a dollar sign starts no formula
        )
        if style.get("paint-order") == "stroke":
            halo = withStroke(linewidth=3 * _POINT, foreground=_color(style, "stroke", "none"))
            text.set_path_effects([halo])
        self._artists.append(text)

    def print(self, width: float, height: float, pixels: float, software: str | None) -> bytes:
        dpi = 72 * pixels / _POINT
        self._flip.scale(pixels, -pixels).translate(0, round(pixels * height))
        image = io.BytesIO()
        # Not the settings of a file in the current folder.
        with rc_context(dict(rcParamsDefault) | {"lines.scale_dashes": False}):
            figure = Figure((width * pixels / dpi, height * pixels / dpi), dpi, facecolor="white")
            for artist in self._artists:
                figure.add_artist(artist)
            with warnings.catch_warnings():
                # The font lacks many scripts and all emoji; a box in a label needs no warning.
                warnings.filterwarnings("ignore", message="Glyph .* missing from")
                FigureCanvasAgg(figure).print_png(image, metadata={"Software": software})
        return image.getvalue()


def _extent(svg: Element) -> tuple[float, float]:
    """The width and height of an SVG's own coordinates, which start at 0."""
    box = svg.get("viewBox") or f"0 0 {svg.get('width')} {svg.get('height')}"
    wide, high = map(float, box.split()[2:])
    return wide, high


def _outline(element: Element, extent: tuple[float, float]) -> Path | None:
    def at(*names: str) -> Iterator[float]:
        return (_length(element, name, extent) for name in names)

    match element.tag:
        case "line":
            x1, y1, x2, y2 = at("x1", "y1", "x2", "y2")
            return Path([(x1, y1), (x2, y2)])
        case "rect":
            box = Affine2D().scale(*at("width", "height")).translate(*at("x", "y"))
            return Path.unit_rectangle().transformed(box)
        case "circle" | "ellipse":
            radii = at("r", "r") if element.tag == "circle" else at("rx", "ry")
            box = Affine2D().scale(*radii).translate(*at("cx", "cy"))
            return Path.unit_circle().transformed(box)
        case "path":  # of the commands M, L and C
            parts = re.findall(r"([MLC])([^MLC]*)", element.get("d", ""))
            points = [(name, pair) for name, numbers in parts for pair in _pairs(numbers)]
            codes = [_CODES[name] for name, _ in points]
            return Path([pair for _, pair in points], codes) if points else None
    return None


def _pairs(numbers: str) -> list[tuple[float, float]]:
    values = [float(number) for number in re.findall(r"[-\d.e]+", numbers)]
    return list(zip(values[::2], values[1::2], strict=True))


def _length(element: Element, name: str, extent: tuple[float, float]) -> float:
    text = element.get(name)
    if text is not None and text.endswith("%"):
        return float(text[:-1]) / 100 * extent[0 if name in _WIDE else 1]
    return _size(text, 0.0)


def _size(text: str | None, default: float) -> float:
    """Pixels; the default for what depends on the screen."""
    found = re.fullmatch(r"(-?[\d.]+)(px|rem|em)?", text or "")
    return float(found[1]) * (16 if found[2] in ("rem", "em") else 1) if found else default


def _color(style: Mapping[str, str], name: str, default: str) -> tuple[float, float, float, float]:
    value = style.get(name, default)
    while found := re.search(r"var\((--[\w-]+)[^)]*\)", value):
        value = value.replace(found[0], style.get(found[1], "none"))
    red, green, blue, alpha = to_rgba("none" if value == "transparent" else value)
    share = float(style["opacity"]) * float(style.get(f"{name}-opacity", 1))
    return red, green, blue, alpha * share
