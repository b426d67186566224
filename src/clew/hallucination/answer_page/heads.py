"""The lookback ratio of every head as two maps: its value, and its difference from the average
answer."""

import numpy as np

from clew.hallucination.answer_page.cards import kind_class
from clew.hallucination.answer_page.picture import Picture, ShownAnswer
from clew.pages.markup import Html, tag

_WIDTH, _LEFT, _TOP = 540, 40, 6
_HIGHEST_CELL = 16.0
MOST_DEVIATIONS = 3.0


def draw_heads(answer: ShownAnswer, picture: Picture) -> Html:
    if answer.lookback is None:
        return tag("div", tag("p", "Not stored for this answer.", class_="quiet"))
    maps = [_draw_map("Lookback ratio", answer.lookback, ("0", "1"), "depth")]
    unusual = deviations(answer, picture)
    if unusual is not None:
        most = f"{MOST_DEVIATIONS:.0f}"
        title = "Difference from the average answer, in standard deviations"
        maps.append(_draw_map(title, unusual, (f"−{most}", f"+{most}"), "unlike"))
    return tag("figure", maps, class_=kind_class(answer))


def deviations(answer: ShownAnswer, picture: Picture) -> np.ndarray | None:
    """How unusual each head was compared with other answers of the store; None without others."""
    latent = picture.latent
    if answer.lookback is None or latent is None or latent.lookback_deviation is None:
        return None
    assert latent.lookback_mean is not None
    if latent.lookback_mean.shape != answer.lookback.shape:
        return None
    return (answer.lookback - latent.lookback_mean) / np.maximum(latent.lookback_deviation, 1e-3)


def _draw_map(title: str, values: np.ndarray, ends: tuple[str, str], scale: str) -> Html:
    layers, heads = values.shape
    wide, high = (_WIDTH - _LEFT - 4) / layers, min(_HIGHEST_CELL, 260 / heads)
    bottom = _TOP + high * heads
    cells = [
        _cell(float(values[layer, head]), layer, head, wide, high, scale)
        for layer in range(layers)
        for head in range(heads)
    ]
    columns = [
        tag(
            "rect",
            x=_LEFT + wide * layer,
            y=_TOP,
            width=wide,
            height=high * heads,
            class_="now-column",
            data_layer=layer,
        )
        for layer in range(layers)
    ]
    return tag(
        "div",
        tag("h3", title, _scale(ends, scale)),
        tag(
            "svg",
            cells,
            columns,
            _ticks(layers, heads, wide, high, bottom),
            viewBox=f"0 0 {_WIDTH} {bottom + 34:.0f}",
            class_="map",
            role="img",
            aria_label=title,
        ),
    )


def _cell(value: float, layer: int, head: int, wide: float, high: float, scale: str) -> Html:
    if scale == "unlike":
        side = "more" if value > 0 else "less"
        depth = min(1.0, abs(value) / MOST_DEVIATIONS)
    else:
        side, depth = "depth", min(1.0, max(0.0, value))
    return tag(
        "rect",
        tag("title", f"layer {layer}, head {head}: {value:.2f}"),
        x=_LEFT + wide * layer,
        y=_TOP + high * head,
        width=wide - 0.7,
        height=high - 0.7,
        class_=side,
        style=f"fill-opacity:{depth:.2f}",
    )


def _ticks(layers: int, heads: int, wide: float, high: float, bottom: float) -> Html:
    step, rise = max(1, -(-layers // 10)), max(1, -(-heads // 5))
    return tag(
        "g",
        [
            tag("text", str(i), x=_LEFT + wide * (i + 0.5), y=bottom + 13, class_="tick middle")
            for i in range(0, layers, step)
        ],
        [
            tag("text", str(i), x=_LEFT - 5, y=_TOP + high * (i + 0.5) + 4, class_="tick end")
            for i in range(0, heads, rise)
        ],
        tag("text", "layer", x=_WIDTH - 4, y=bottom + 28, class_="axis end"),
        tag("text", "head", x=_LEFT - 5, y=bottom + 13, class_="axis end"),
    )


def _scale(ends: tuple[str, str], scale: str) -> Html:
    low, high = ends
    return tag("span", low, tag("i", class_=scale), high, class_="scale")
