"""The two panels of hidden states on the page: the path in a plane, and the output of a linear
probe at every layer."""

from collections.abc import Iterable, Sequence

import numpy as np

from clew.hallucination.answer_page.cards import kind_class
from clew.hallucination.answer_page.picture import Band, Latent, MeanPath, Picture
from clew.pages.markup import Html, tag

_WIDTH, _HEIGHT = 540, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 16, 46, 36
_LABEL_ROOM = 18.0  # minimum distance between two layer numbers, in pixels
_PROBE_AXIS = "\N{LEFTWARDS ARROW} correct     hallucinated \N{RIGHTWARDS ARROW}"


class _Frame:
    """Maps values to picture coordinates."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = _roomy(*x), _roomy(*y)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def scale(self, dx: float, dy: float) -> tuple[float, float]:
        return abs(self.x(dx) - self.x(0)), abs(self.y(dy) - self.y(0))

    def line(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def draw_paths(picture: Picture, latent: Latent) -> Html:
    paths = [path for path in latent.paths if path is not None]
    near = [mean.center + side * mean.spread for mean in latent.means for side in (-1, 1)]
    points = np.concatenate([*paths, *near])
    low, high = points.min(0), points.max(0)
    frame = _Frame((low[0], high[0]), (low[1], high[1]))
    first, second = latent.explained
    return _plot(
        "Path in the plane of the first two principal components",
        _axis_names(f"component 1 ({first:.0%})", f"component 2 ({second:.0%})"),
        [_mean_path(frame, mean) for mean in latent.means],
        [
            _own_line(frame, path.tolist(), name, words)
            for (words, name, _), path in zip(_own_keys(picture), latent.paths, strict=True)
            if path is not None
        ],
        _layer_numbers([(frame.x(x), frame.y(y)) for x, y in paths[0].tolist()]),
        _legend(_path_keys(picture, latent)),
    )


def draw_places(picture: Picture, latent: Latent) -> Html:
    layers = latent.bands[0].quartiles.shape[1]
    places = [place for place in latent.places if place is not None]
    values = np.concatenate([*places, *(band.quartiles.reshape(-1) for band in latent.bands)])
    frame = _Frame((0, layers - 1), (min(-1.0, values.min()), max(1.0, values.max())))
    return _plot(
        "Output of a linear probe at every layer",
        _place_axes(frame, layers),
        [_band(frame, band) for band in latent.bands],
        [
            _own_line(frame, list(enumerate(place.tolist())), name, words)
            for (words, name, _), place in zip(_own_keys(picture), latent.places, strict=True)
            if place is not None
        ],
        [_now_line(frame, layer) for layer in range(layers)],
        _legend(_place_keys(picture, latent)),
    )


def _plot(title: str, *parts: Html | list[Html]) -> Html:
    picture = tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=title,
        class_="plot",
    )
    return tag("figure", tag("h3", title), picture)


def _mean_path(frame: _Frame, mean: MeanPath) -> Html:
    clouds = [_cloud(frame, *pair) for pair in zip(mean.center, mean.spread, strict=True)]
    line = tag("polyline", points=frame.line(mean.center), class_="mean")
    return tag("g", clouds, line, class_=_class_of(mean.kind))


def _cloud(frame: _Frame, center: np.ndarray, spread: np.ndarray) -> Html:
    rx, ry = frame.scale(*spread)
    x, y = frame.x(center[0]), frame.y(center[1])
    return tag("ellipse", cx=x, cy=y, rx=max(1.0, rx), ry=max(1.0, ry), class_="cloud")


def is_labeled(layer: int, layers: int) -> bool:
    """Whether the layer's number is drawn; drawing all would be too crowded."""
    step = max(1, layers // 6)
    return layer == layers - 1 or (layer % step == 0 and layers - 1 - layer >= step / 2)


def _own_line(frame: _Frame, points: Sequence[tuple[float, float]], name: str, words: str) -> Html:
    """The line of an answer that is shown, with a dot per layer."""
    dots = []
    for layer, (x, y) in enumerate(points):
        tip = tag("title", f"{words}, layer {layer}")
        dots.append(tag("circle", tip, cx=frame.x(x), cy=frame.y(y), r=2.4, data_layer=layer))
    line = tag("polyline", points=frame.line(points), class_="own")
    return tag("g", line, dots, class_=name)


def _layer_numbers(places: Sequence[tuple[float, float]]) -> list[Html]:
    return [
        tag("text", str(layer), x=places[layer][0] + 7, y=places[layer][1] - 6, class_="tick halo")
        for layer in choose_labels(places)
    ]


def choose_labels(places: Sequence[tuple[float, float]]) -> list[int]:
    """The layers whose numbers are drawn: a few, none too close to another. The first and the last
    layer take precedence."""
    some = [layer for layer in range(len(places)) if is_labeled(layer, len(places))]
    chosen: list[int] = []
    for layer in dict.fromkeys([some[0], some[-1], *some]):
        x, y = places[layer]
        others = [places[other] for other in chosen]
        if all(max(abs(x - left), abs(y - top)) >= _LABEL_ROOM for left, top in others):
            chosen.append(layer)
    return sorted(chosen)


def _band(frame: _Frame, band: Band) -> Html:
    low, middle, high = band.quartiles.tolist()
    there, back = list(enumerate(high)), list(enumerate(low))[::-1]
    area = tag("polygon", points=frame.line(there + back), class_="band")
    line = tag("polyline", points=frame.line(enumerate(middle)), class_="mean")
    return tag("g", area, line, class_=_class_of(band.kind))


def _place_axes(frame: _Frame, layers: int) -> Html:
    names = ((-1, "−1"), (0, "0"), (1, "+1"))
    levels = [
        tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=frame.y(v), y2=frame.y(v), class_="grid")
        for v, _ in names
    ]
    words = [tag("text", w, x=_LEFT - 4, y=frame.y(v) + 4, class_="tick end") for v, w in names]
    step = max(1, -(-layers // 8))
    ticks = [
        tag("text", str(i), x=frame.x(i), y=_HEIGHT - 18, class_="tick middle")
        for i in range(0, layers, step)
    ]
    return tag("g", levels, words, ticks, _axis_names("layer", _PROBE_AXIS))


def _now_line(frame: _Frame, layer: int) -> Html:
    x = frame.x(layer)
    return tag(
        "line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="now-line", data_layer=layer
    )


def _axis_names(x: str, y: str) -> Html:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f"rotate(-90 14 {middle:.0f})"
    return tag(
        "g",
        tag("text", x, x=_WIDTH - _RIGHT, y=_HEIGHT - 4, class_="axis end"),
        tag("text", y, x=14, y=middle, transform=turned, class_="axis middle") if y else None,
    )


def _path_keys(picture: Picture, latent: Latent) -> list[tuple[str, str, str]]:
    means = [
        (f"{mean.kind or 'all'} (mean of {mean.answers:,})", _class_of(mean.kind), "mean")
        for mean in latent.means
    ]
    return [*_own_keys(picture), *means]


def _place_keys(picture: Picture, latent: Latent) -> list[tuple[str, str, str]]:
    bands = [
        (f"{b.kind} (median of {b.answers:,})", _class_of(b.kind), "mean") for b in latent.bands
    ]
    return [*_own_keys(picture), *bands]


def _own_keys(picture: Picture) -> list[tuple[str, str, str]]:
    """The second answer has hollow dots: both may have the same label and color."""
    hollow = ("", " second")
    return [
        (f"answer {answer.number}", kind_class(answer) + mark, "own")
        for answer, mark in zip(picture.answers, hollow, strict=False)
    ]


def _legend(keys: Sequence[tuple[str, str, str]]) -> Html:
    """Two rows: the answers shown, and what they are compared with."""
    found = []
    for row, line in enumerate(("own", "mean")):
        y = 16.0 + 17 * row
        for place, (words, kind) in enumerate((w, k) for w, k, which in keys if which == line):
            x = _LEFT + 235.0 * place
            stroke = tag("line", x1=x, x2=x + 20, y1=y - 4, y2=y - 4, class_=line)
            text = tag("text", words, x=x + 26, y=y, class_="axis")
            dot = tag("circle", cx=x + 10, cy=y - 4, r=2.6) if line == "own" else None
            found.append(tag("g", stroke, dot, text, class_=kind))
    return tag("g", found, class_="legend")


def _class_of(kind: str | None) -> str:
    return "unknown" if kind is None else kind.replace(" ", "-")


def _roomy(low: float, high: float) -> tuple[float, float]:
    room = 0.05 * (high - low) or 1.0
    return float(low - room), float(high + room)
