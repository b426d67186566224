"""The picture as one self-contained HTML page: inline SVG, style and script."""

import json
from importlib.resources import files
from typing import Any

from clew.base.typed_json import without_nan
from clew.hallucination.answer_page.cards import (
    draw_arcs,
    draw_card,
    draw_probabilities,
    graph_data,
    views_of,
)
from clew.hallucination.answer_page.heads import draw_heads
from clew.hallucination.answer_page.picture import Picture
from clew.hallucination.answer_page.plots import draw_paths, draw_places
from clew.pages.markup import Html, tag, with_settings
from clew.version import __version__

_FITTED = " The probes were fitted without the answers shown and without those in the bands."


def render_page(picture: Picture, generator: str) -> str:
    """The whole page. All texts from the store are escaped."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=generator),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{picture.title} - {picture.store}"),
        tag("style", _read("style.css")),
    )
    body = tag(
        "body",
        tag("main", *_sections(picture), class_="two" if len(picture.answers) > 1 else "one"),
        tag("script", _as_script_data(_page_data(picture)), type="application/json", id="data"),
        tag("script", _read("page.js")),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _sections(picture: Picture) -> list[Html | None]:
    return [
        _header(picture),
        tag("div", [draw_card(answer) for answer in picture.answers], class_="columns"),
        _probabilities(picture),
        _toolbar(picture),
        tag(
            "div",
            _attention(picture),
            tag("div", _latent(picture), _heads(picture)),
            class_="layered",
        ),
        _footer(picture),
    ]


def _header(picture: Picture) -> Html:
    return tag("header", tag("h1", picture.title), tag("p", picture.origin))


def _probabilities(picture: Picture) -> Html | None:
    if all(answer.logprobs is None for answer in picture.answers):
        return None
    return _section(
        "Token probabilities",
        "The bar is the token's probability; the darker the background, the less likely the token. "
        "The thin line below is the entropy in nats.",
        tag("div", [draw_probabilities(answer) for answer in picture.answers], class_="columns"),
    )


def _toolbar(picture: Picture) -> Html | None:
    if picture.layers < 1:
        return None
    slider = tag(
        "input",
        type="range",
        id="layer",
        min="0",
        max=str(picture.layers - 1),
        value=str(picture.layer),
    )
    boxes = [
        _checkbox("first", "attention to the first token"),
        _checkbox("inside", "attention within the prompt"),
    ]
    graphs = [answer for answer in picture.answers if answer.graph]
    if any(len(views_of(answer)) > 1 for answer in graphs):
        boxes.insert(0, _checkbox("whole", "whole prompt"))
    return tag(
        "div",
        tag("label", "Layer", for_="layer"),
        slider,
        tag("output", f"{picture.layer}", id="layer-number", for_="layer"),
        tag("span", f"(0 to {picture.layers - 1})", class_="quiet"),
        boxes if graphs else None,
        class_="toolbar",
    )


def _checkbox(name: str, words: str) -> Html:
    return tag("label", tag("input", type="checkbox", id=name), f" {words}", class_="check")


def _attention(picture: Picture) -> Html | None:
    if not any(answer.graph for answer in picture.answers):
        return None
    return _section(
        "Attention",
        "Tokens in reading order, with the prompt folded to the question. An arc leads from a "
        "token of the answer up to one that it attends to, averaged over heads; wider and darker "
        "is stronger. Colored arcs lead into the prompt, dark ones stay within the answer. Hover "
        "over a token to see only its own arcs; click to keep them.",
        tag(
            "div",
            [draw_arcs(answer, picture.layer) for answer in picture.answers],
            class_="columns",
        ),
        class_="attention",
    )


def _latent(picture: Picture) -> Html | None:
    latent = picture.latent
    if latent is None:
        return None
    panels = [draw_paths(picture, latent)]
    if latent.bands:
        panels.append(draw_places(picture, latent))
    return _section(
        "Hidden states across layers",
        f"The hidden state of the last token at every layer, scaled to length 1. The plane "
        f"explains {sum(latent.explained):.0%} of the variance over {latent.fitted_on:,} answers; "
        f"shading shows the spread of other answers.{_FITTED if latent.bands else ''}",
        tag("div", panels, class_="columns"),
        class_="latent",
    )


def _heads(picture: Picture) -> Html | None:
    if all(answer.lookback is None for answer in picture.answers):
        return None
    return _section(
        "Lookback ratio of every head",
        "The share of a head's attention that the answer's tokens give to the prompt rather than "
        "to the answer so far (1: all on the prompt).",
        tag("div", [draw_heads(answer, picture) for answer in picture.answers], class_="columns"),
        class_="heads",
    )


def _section(title: str, words: str, content: Html, class_: str | None = None) -> Html:
    heading = tag("h2", title)
    return tag("section", heading, tag("p", words, class_="words"), content, class_=class_)


def _footer(picture: Picture) -> Html:
    notes = [
        *(f"answer {a.number}: {note}" for a in picture.answers for note in a.notes),
        *picture.notes,
    ]
    made = tag("p", f"Made by clew {__version__}.", class_="quiet")
    return tag(
        "footer",
        tag("ul", [tag("li", with_settings(note)) for note in notes]) if notes else None,
        made,
    )


def _page_data(picture: Picture) -> dict[str, Any]:
    graphs = [
        graph_data(answer, rows)
        for answer in picture.answers
        if answer.graph
        for rows in views_of(answer)
    ]
    return {"layer": picture.layer, "graphs": graphs}


def _as_script_data(data: dict[str, Any]) -> Html:
    """JSON that is safe inside a <script> element."""
    text = json.dumps(without_nan(data), separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _read(name: str) -> Html:
    return Html(files("clew.hallucination.answer_page").joinpath(name).read_text(encoding="utf-8"))
