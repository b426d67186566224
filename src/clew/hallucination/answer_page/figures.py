"""The figures of an answer: attention arcs (the script redraws them for another layer), the path of
its hidden states, a linear probe's output at every layer, and the lookback ratio of every head."""

from collections.abc import Sequence

import numpy as np

from clew.hallucination.answer_page.picture import (
    Latent,
    Picture,
    ShownAnswer,
    View,
    percent_text,
    views_of,
)
from clew.pages.figures import Frame, padded_range
from clew.pages.markup import Child, Html, circle, rect, tag

_WIDTH = 540
# Attention: the height of a row, where the arcs end, and the margin above and below.
_ROW, _ARCS, _MARGIN = 16, 330, 10
# Plots
_HEIGHT, _LEFT = 400, 40
_SIDES = {"left": _LEFT, "right": _WIDTH - 16, "top": 46, "bottom": _HEIGHT - 36}
_LABEL_DISTANCE = 18.0  # the least between two layer numbers, in pixels
_PROBE_AXIS = "\N{LEFTWARDS ARROW} low risk     high risk \N{RIGHTWARDS ARROW}"
# Head maps
_HIGHEST_CELL, _MAP_TOP = 16.0, 6
_MOST_DEVIATIONS = 3.0


def kind_class(kind: str | None) -> str:
    return kind or "unknown"


def draw_arcs(answer: ShownAnswer, layer: int, most_rows: int = 200) -> Html:
    """A figure per view, of about so many rows at most; the page shows one of them."""
    if answer.graph is None:
        return tag("div", tag("p", "The attention of this answer is not stored.", class_="quiet"))
    views = views_of(answer, most_rows)
    names = ("short", "whole") if len(views) > 1 else ("only",)
    pairs = zip(views, names, strict=True)
    return tag("div", [_draw_view(answer, view, layer, name) for view, name in pairs])


def _draw_view(answer: ShownAnswer, view: View, layer: int, name: str) -> Html:
    """Without the arcs to the first token and those within the prompt; page.js draws the same."""
    assert answer.graph is not None
    count, start = len(view.texts), view.start
    edges = zip(*(part.tolist() for part in answer.graph.edges(layer, view.rows)), strict=True)
    drawn = [
        (source, target, weight)
        for source, target, weight in reversed(list(edges))
        if source > 0 and (target >= start or start == count)
    ]
    received = np.zeros(count)
    for source, _, weight in drawn:
        received[source] += weight
    shares = received / max(1, count - start)
    picture = tag(
        "svg",
        _border(start) if 0 < start < count else None,
        tag("g", [_arc(*edge, view) for edge in drawn] if name != "whole" else None, class_="arcs"),
        [_row(answer, view, row, float(share)) for row, share in enumerate(shares)],
        viewBox=f"0 0 {_WIDTH} {_MARGIN * 2 + _ROW * count}",
        role="img",
        aria_label=f"attention graph of answer {answer.number}",
        data_x=_ARCS,
        data_row=_ROW,
        data_top=_MARGIN,
    )
    told = tag("p", _tell_shares(answer, layer), class_="shares summary")
    focus, kind = tag("p", class_="focus quiet"), kind_class(answer.kind)
    return tag("figure", told, focus, picture, class_=f"graph {name} {kind}")


def _tell_shares(answer: ShownAnswer, layer: int) -> str:
    """A sentence on where the attention goes in a layer; page.js writes the same one for other
    layers."""
    assert answer.graph is not None
    first, prompt, own, itself, unstored = map(percent_text, answer.graph.shares(layer))
    whose = "the answer" if answer.prompt_length < answer.graph.tokens else "all tokens"
    return (
        f"Attention of {whose} in layer {layer}: {first} on the first token, {prompt} on the rest "
        f"of the prompt, {own} on earlier tokens of the answer, {itself} on the token itself, "
        f"{unstored} on weaker edges that are not stored."
    )


def _arc(source: int, target: int, weight: float, view: View) -> Html:
    first, last = (_MARGIN + _ROW * (row + 0.5) for row in (target, source))
    bow = (_ARCS - 14) * 1.3 * ((target - source) / max(1, len(view.texts) - 1)) ** 0.62
    left = f"{_ARCS - bow:.1f}"
    width, opacity = 0.6 + 9 * weight, min(0.9, 0.08 + 4.5 * weight)
    return tag(
        "path",
        d=f"M{_ARCS} {first:g}C{left} {first:g} {left} {last:g} {_ARCS} {last:g}",
        style=f"stroke-width:{width:.2f};opacity:{opacity:.2f}",
        class_="to-prompt" if source < view.start else "to-answer",
    )


def _row(answer: ShownAnswer, view: View, row: int, received: float) -> Html:
    """A token; its dot is larger the more the answer attends to it."""
    y = _MARGIN + _ROW * (row + 0.5)
    is_folded = row in view.rows.folded
    part = "answer" if row >= view.start else "prompt"
    whole = None if is_folded else repr(answer.texts[view.rows.token[row]])
    return tag(
        "g",
        rect(_ARCS - 8, y - _ROW / 2, _WIDTH - _ARCS + 8, _ROW),
        circle(_ARCS, y, min(7, 1.6 + 12.6 * received**0.5)),
        tag("text", view.texts[row], x=_ARCS + 14, y=y + 4),
        tag("title", whole) if whole else None,
        class_=f"row {part}{' folded' if is_folded else ''}",
        data_at=row,
    )


def _border(start: int) -> Html:
    y = _MARGIN + _ROW * start
    return tag(
        "g",
        tag("line", x1=_ARCS - 8, x2=_WIDTH, y1=y, y2=y),
        tag("text", "prompt", x=_WIDTH - 4, y=y - 5),
        tag("text", "answer", x=_WIDTH - 4, y=y + 13),
        class_="border",
    )


def draw_paths(picture: Picture, latent: Latent) -> Html:
    paths = [path for path in latent.paths if path is not None]
    near = [mean.center + side * mean.spread for mean in latent.means for side in (-1, 1)]
    points = np.concatenate([*paths, *near])
    x_range, y_range = (padded_range(values) for values in points.T.tolist())
    frame = Frame(x_range, y_range, **_SIDES)
    first, second = latent.explained
    means = []
    for mean in latent.means:
        clouds = [
            tag(
                "ellipse",
                cx=frame.x(x),
                cy=frame.y(y),
                rx=max(1.0, frame.x(x + dx) - frame.x(x)),
                ry=max(1.0, frame.y(y) - frame.y(y + dy)),
                class_="cloud",
            )
            for (x, y), (dx, dy) in zip(mean.center, mean.spread, strict=True)
        ]
        line = tag("path", d=frame.path(*mean.center.T), class_="mean")
        means.append(tag("g", clouds, line, class_=kind_class(mean.kind)))
    places = [(frame.x(x), frame.y(y)) for x, y in paths[0].tolist()]
    numbers = [
        tag("text", str(layer), x=places[layer][0] + 7, y=places[layer][1] - 6, class_="tick halo")
        for layer in _choose_labels(places)
    ]
    return _plot(
        "Path in the plane of the first two principal components",
        _axis_names(f"component 1 ({first:.0%})", f"component 2 ({second:.0%})"),
        means,
        _own_lines(frame, picture, [None if p is None else p.tolist() for p in latent.paths]),
        numbers,
        _legend(
            picture, [(m.kind, f"{m.kind or 'all'} (mean of {m.answers:,})") for m in latent.means]
        ),
    )


def draw_places(picture: Picture, latent: Latent) -> Html:
    layers = latent.bands[0].quartiles.shape[1]
    places = [None if p is None else list(enumerate(p.tolist())) for p in latent.places]
    known = [place for place in latent.places if place is not None]
    values = np.concatenate([*known, *(band.quartiles.reshape(-1) for band in latent.bands)])
    frame = Frame(padded_range([0, layers - 1]), padded_range([-1, 1, *values]), **_SIDES)
    bands = []
    for band in latent.bands:
        low, middle, high = band.quartiles.tolist()
        around = frame.path([*range(layers), *range(layers)[::-1]], [*high, *low[::-1]])
        line = tag("path", d=frame.path(range(layers), middle), class_="mean")
        area = tag("path", d=around, class_="band")
        bands.append(tag("g", area, line, class_=kind_class(band.kind)))
    return _plot(
        "Output of a linear probe at every layer",
        _place_axes(frame, layers),
        bands,
        _own_lines(frame, picture, places),
        [_now_line(frame.x(layer), layer, picture) for layer in range(layers)],
        _legend(picture, [(b.kind, f"{b.kind} (median of {b.answers:,})") for b in latent.bands]),
    )


def _plot(title: str, *parts: Child) -> Html:
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    picture = tag("svg", *parts, viewBox=box, role="img", aria_label=title, class_="plot")
    return tag("figure", tag("h3", title), picture)


def _own_lines(
    frame: Frame, picture: Picture, lines: Sequence[Sequence[tuple[float, float]] | None]
) -> list[Html]:
    """The lines of the answers that are shown, with a dot per layer."""
    found = []
    for (words, name), points in zip(_own_keys(picture), lines, strict=True):
        dots = [
            circle(
                frame.x(x),
                frame.y(y),
                2.4,
                tag("title", f"{words}, layer {layer}"),
                class_=_now(layer, picture),
                data_layer=layer,
            )
            for layer, (x, y) in enumerate(points or ())
        ]
        if points:
            line = tag("path", d=frame.path(*zip(*points, strict=True)), class_="own")
            found.append(tag("g", line, dots, class_=name))
    return found


def _now(layer: int, picture: Picture, name: str = "") -> str | None:
    """The class of what the slider chooses."""
    return f"{name} now".strip() if layer == picture.layer else name or None


def _choose_labels(places: Sequence[tuple[float, float]]) -> list[int]:
    """The layers whose numbers are drawn: a few, none too close to another. The first and the last
    layer take precedence."""
    last, step = len(places) - 1, max(1, len(places) // 6)
    chosen: list[int] = []
    for layer in dict.fromkeys([0, last, *range(0, int(last - step / 2) + 1, step)]):
        x, y = places[layer]
        others = [places[other] for other in chosen]
        if all(max(abs(x - left), abs(y - top)) >= _LABEL_DISTANCE for left, top in others):
            chosen.append(layer)
    return sorted(chosen)


def _place_axes(frame: Frame, layers: int) -> Html:
    names = ((frame.y(-1), "−1"), (frame.y(0), "0"), (frame.y(1), "+1"))
    steps = range(0, layers, max(1, -(-layers // 8)))
    return tag(
        "g",
        [tag("line", x1=_LEFT, x2=frame.right, y1=y, y2=y, class_="grid") for y, _ in names],
        [tag("text", words, x=_LEFT - 4, y=y + 4, class_="tick end") for y, words in names],
        [tag("text", i, x=frame.x(i), y=_HEIGHT - 18, class_="tick middle") for i in steps],
        _axis_names("layer", _PROBE_AXIS),
    )


def _now_line(x: float, layer: int, picture: Picture) -> Html:
    name = _now(layer, picture, "now-line")
    return tag(
        "line", x1=x, x2=x, y1=_SIDES["top"], y2=_SIDES["bottom"], class_=name, data_layer=layer
    )


def _axis_names(x: str, y: str) -> Html:
    middle = (_SIDES["top"] + _SIDES["bottom"]) / 2
    turned = f"rotate(-90 14 {middle:.0f})"
    return tag(
        "g",
        tag("text", x, x=_SIDES["right"], y=_HEIGHT - 4, class_="axis end"),
        tag("text", y, x=14, y=middle, transform=turned, class_="axis middle"),
    )


def _own_keys(picture: Picture) -> list[tuple[str, str]]:
    """The second answer has hollow dots: both may have the same label and color."""
    return [
        (f"answer {answer.number}", f"{kind_class(answer.kind)}{' second' if place else ''}")
        for place, answer in enumerate(picture.answers)
    ]


def _legend(picture: Picture, others: Sequence[tuple[str | None, str]]) -> Html:
    """Two rows: the answers shown, and what they are compared with."""
    rows = {
        "own": _own_keys(picture),
        "mean": [(words, kind_class(kind)) for kind, words in others],
    }
    found = []
    for y, (line, keys) in zip((16.0, 33.0), rows.items(), strict=True):
        for place, (words, kind) in enumerate(keys):
            x = _LEFT + 235.0 * place
            stroke = tag("line", x1=x, x2=x + 20, y1=y - 4, y2=y - 4, class_=line)
            text = tag("text", words, x=x + 26, y=y, class_="axis")
            dot = circle(x + 10, y - 4, 2.6) if line == "own" else None
            found.append(tag("g", stroke, dot, text, class_=kind))
    return tag("g", found, class_="legend")


def draw_heads(answer: ShownAnswer, picture: Picture) -> Html:
    """Two maps: the ratio of every head, and its difference from the average answer."""
    if answer.lookback is None:
        return tag("div", tag("p", "Not stored for this answer.", class_="quiet"))
    maps = [_draw_map("Lookback ratio", answer.lookback, ("0", "1"), picture)]
    mean, deviation = None, None
    if picture.latent is not None:
        mean, deviation = picture.latent.lookback_mean, picture.latent.lookback_deviation
    if mean is not None and deviation is not None and mean.shape == answer.lookback.shape:
        unusual = (answer.lookback - mean) / np.maximum(deviation, 1e-3) / _MOST_DEVIATIONS
        most = f"{_MOST_DEVIATIONS:.0f}"
        title = "Difference from the average answer, in standard deviations"
        maps.append(_draw_map(title, unusual, (f"−{most}", f"+{most}"), picture))
    return tag("figure", maps, class_=kind_class(answer.kind))


def _draw_map(title: str, values: np.ndarray, ends: tuple[str, str], picture: Picture) -> Html:
    """`values` are from 0 or -1 to 1, which the `ends` of the scale name."""
    layers, heads = values.shape
    wide, high = (_WIDTH - _LEFT - 4) / layers, min(_HIGHEST_CELL, 260 / heads)
    bottom, is_signed = _MAP_TOP + high * heads, ends[0] != "0"
    scale = _MOST_DEVIATIONS if is_signed else 1
    cells = [
        rect(
            _LEFT + wide * layer,
            _MAP_TOP + high * head,
            wide - 0.7,
            high - 0.7,
            tag("title", f"layer {layer}, head {head}: {scale * values[layer, head]:.2f}"),
            **_depth(float(values[layer, head]), is_signed=is_signed),
        )
        for layer in range(layers)
        for head in range(heads)
    ]
    columns = [
        rect(
            _LEFT + wide * layer,
            _MAP_TOP,
            wide,
            high * heads,
            class_=_now(layer, picture, "now-column"),
            data_layer=layer,
        )
        for layer in range(layers)
    ]
    box = f"0 0 {_WIDTH} {bottom + 34:.0f}"
    parts = (cells, columns, _map_axes(layers, heads, bottom), _draw_scale(ends, bottom + 19))
    svg = tag("svg", *parts, viewBox=box, class_="map", role="img", aria_label=title)
    return tag("div", tag("h3", title), svg)


def _depth(value: float, *, is_signed: bool) -> dict[str, str]:
    name = ("more" if value > 0 else "less") if is_signed else "depth"
    depth = min(1.0, abs(value) if is_signed else max(0.0, value))
    return {"class_": name, "style": f"fill-opacity:{depth:.2f}"}


def _map_axes(layers: int, heads: int, bottom: float) -> Html:
    wide, high = (_WIDTH - _LEFT - 4) / layers, (bottom - _MAP_TOP) / heads
    xs = [(i, _LEFT + wide * (i + 0.5)) for i in range(0, layers, max(1, -(-layers // 10)))]
    ys = [(i, _MAP_TOP + high * (i + 0.5) + 4) for i in range(0, heads, max(1, -(-heads // 5)))]
    return tag(
        "g",
        [tag("text", i, x=x, y=bottom + 13, class_="tick middle") for i, x in xs],
        [tag("text", i, x=_LEFT - 5, y=y, class_="tick end") for i, y in ys],
        tag("text", "layer", x=_WIDTH - 4, y=bottom + 28, class_="axis end"),
        tag("text", "head", x=_LEFT - 5, y=bottom + 13, class_="axis end"),
    )


def _draw_scale(ends: tuple[str, str], y: float) -> Html:
    """What the colors mean, in eleven steps."""
    low, high = ends
    is_signed, steps = low != "0", np.linspace(-1 if low != "0" else 0, 1, 11).tolist()
    boxes = [
        rect(_LEFT + 18 + 8 * place, y, 8, 9, **_depth(value, is_signed=is_signed))
        for place, value in enumerate(steps)
    ]
    words = [(low, _LEFT + 13, "tick end"), (high, _LEFT + 111, "tick")]
    return tag("g", boxes, [tag("text", text, x=x, y=y + 9, class_=of) for text, x, of in words])
