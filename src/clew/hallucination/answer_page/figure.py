"""The picture as a PNG: the same panels as the page, at one layer."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clew.hallucination.answer_page.cards import accepted_text, describe_source, tell_verdict
from clew.hallucination.answer_page.panels import (
    COLUMN_WIDTH,
    INK,
    QUIET,
    arcs_height,
    color_of,
    draw_arcs,
    draw_heads,
    draw_paths,
    draw_places,
    draw_probabilities,
    drawable,
    probabilities_height,
    wrap,
)
from clew.hallucination.answer_page.picture import Picture

_WIDTH, _DPI = 13.0, 110
_PLOT_HEIGHT, _MAP_HEIGHT, _GAP, _MARGIN = 3.9, 2.3, 0.75, 0.45
_WORDS = 84

Panel = tuple[float, Callable[[Axes], None]]  # its height in inches, and what draws it


@rc_context(rcParamsDefault)  # not the settings of a file in the current folder
def render_png(picture: Picture, generator: str) -> bytes:
    """A PNG as tall as its panels; long token lists are folded, as on the page."""
    columns = _columns(picture)
    head = 0.9 + max(_card_height(picture, place) for place in range(len(picture.answers)))
    height = head + max(sum(h + _GAP for h, _ in column) for column in columns) + _MARGIN
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")
    _write_head(figure, picture, height)
    for place, column in enumerate(columns):
        _lay_column(figure, column, place, top=height - head)
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image, metadata={"Software": generator})
    return image.getvalue()


def _columns(picture: Picture) -> list[list[Panel]]:
    """Two columns: one per answer or, for one alone, its tokens and its layers."""
    places = range(len(picture.answers))
    tokens = [_token_panels(picture, place) for place in places]
    heads = [_head_panels(picture, place) for place in places]
    latent = _latent_panels(picture)
    if len(tokens) > 1:
        sides = _align(tokens), (latent[:1], latent[1:]), heads
        return [sum(parts, []) for parts in zip(*sides, strict=True)]
    columns = [tokens[0], latent]
    for panel in heads[0]:
        min(columns, key=lambda column: sum(height for height, _ in column)).append(panel)
    return columns


def _align(columns: list[list[Panel]]) -> list[list[Panel]]:
    """Panels of the same kind start at the same height in both columns."""
    for row in range(min(map(len, columns))):
        height = max(column[row][0] for column in columns)
        for column in columns:
            column[row] = (height, column[row][1])
    return columns


def _token_panels(picture: Picture, place: int) -> list[Panel]:
    answer = picture.answers[place]
    panels: list[Panel] = []
    if answer.logprobs is not None and len(answer.logprobs):
        panels.append((probabilities_height(answer), lambda axes: draw_probabilities(axes, answer)))
    if answer.graph is not None:
        layer = picture.layer
        panels.append((arcs_height(answer), lambda axes: draw_arcs(axes, answer, layer)))
    return panels


def _latent_panels(picture: Picture) -> list[Panel]:
    latent = picture.latent
    if latent is None:
        return []
    panels: list[Panel] = [(_PLOT_HEIGHT, lambda axes: draw_paths(axes, picture, latent))]
    if latent.bands:
        panels.append((_PLOT_HEIGHT, lambda axes: draw_places(axes, picture, latent)))
    return panels


def _head_panels(picture: Picture, place: int) -> list[Panel]:
    answer = picture.answers[place]
    if answer.lookback is None:
        return []
    return [
        (_MAP_HEIGHT, lambda axes: draw_heads(axes, answer, picture, against_others=False)),
        (_MAP_HEIGHT, lambda axes: draw_heads(axes, answer, picture, against_others=True)),
    ]


def _lay_column(figure: Figure, column: Sequence[Panel], place: int, top: float) -> None:
    width, height = figure.get_size_inches()
    left = _MARGIN + 0.25 + place * width / 2
    for panel_height, draw in column:
        bottom = top - panel_height - 0.3
        box = (left / width, bottom / height, COLUMN_WIDTH / width, panel_height / height)
        draw(figure.add_axes(box))
        top = bottom - (_GAP - 0.3)


def _write_head(figure: Figure, picture: Picture, height: float) -> None:
    def write(x: float, y: float, words: str, **style: Any) -> None:
        # Without parse_math, a "$" in an answer stays a dollar sign.
        figure.text(
            x / _WIDTH, 1 - y / height, drawable(words), parse_math=False, va="top", **style
        )

    write(
        _MARGIN, 0.25, f"{picture.title}, layer {picture.layer}", size=15, weight="bold", color=INK
    )
    write(_MARGIN, 0.56, wrap(picture.origin, 150), size=9, color=QUIET)
    for place, answer in enumerate(picture.answers):
        x, y = _MARGIN + place * _WIDTH / 2, 0.92
        label = f"{answer.kind or 'no label'}  ·  {describe_source(answer)}"
        write(x, y, wrap(label, _WORDS), size=9, color=color_of(answer), weight="bold")
        write(x, y + 0.24, _card_text(picture, place), size=9.5, color=INK, linespacing=1.35)


def _card_text(picture: Picture, place: int) -> str:
    answer = picture.answers[place]
    words = _WORDS if len(picture.answers) > 1 else 2 * _WORDS
    lines = [answer.question, answer.answer or "(empty)", f"accepted: {accepted_text(answer)}"]
    lines += [tell_verdict(answer)] if answer.verdict else []
    return "\n".join(wrap(line, words) for line in lines)


def _card_height(picture: Picture, place: int) -> float:
    return 0.3 + 0.185 * (1 + _card_text(picture, place).count("\n"))
