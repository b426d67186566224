"""The picture as one self-contained HTML page (inline SVG, style and script), and as a PNG of the
same figures at one layer."""

import json
from importlib.resources import files

import numpy as np

from clew.base.typed_json import without_nan
from clew.hallucination.answer_page.figures import (
    draw_arcs,
    draw_heads,
    draw_paths,
    draw_places,
    kind_class,
)
from clew.hallucination.answer_page.picture import (
    Picture,
    ShownAnswer,
    accepted_text,
    describe_probabilities,
    describe_source,
    graph_data,
    percent_text,
    tell_verdict,
    views_of,
)
from clew.hallucination.traces.token_texts import shorten, visible_text
from clew.pages.markup import Child, Html, html_head, join, rect, section_texts, tag, with_settings
from clew.version import __version__

_HIGH_ENTROPY = 4.0  # nats; at this entropy the bar is full
_LONGEST_CONTEXT = 240
_PIXELS = 1.25  # of the PNG per pixel of the page
_ROWS = 120  # of an attention graph in the PNG
# The tokens of the PNG: letters of one, width of a letter, height of a line, lines, and width.
_LONGEST, _LETTER, _LINE, _MOST_LINES, _WIDTH = 24, 7.5, 48, 12, 540
_SCALE, _DEEPEST = 9, 0.6  # a step of the scale, and the opacity at its end
_RULINGS = {
    (True, "hallucinated"): "High risk, and labeled hallucinated.",
    (True, "correct"): "High risk, but labeled correct: a false alarm.",
    (True, None): "High risk.",
    (False, "hallucinated"): "Low risk, but labeled hallucinated: missed.",
    (False, "correct"): "Low risk, and labeled correct.",
    (False, None): "Low risk.",
}
_FITTED = " The probes were fitted without the answers shown and without those in the bands."


def render_page(picture: Picture, generator: str) -> str:
    """The whole page. All texts from the store are escaped."""
    head = html_head(f"{picture.title} - {picture.store}", _read("style.css"), generator)
    body = tag(
        "body",
        tag("main", *_sections(picture), class_="two" if len(picture.answers) > 1 else "one"),
        tag("script", _script_data(picture), type="application/json", id="data"),
        tag("script", _read("page.js")),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def render_png(picture: Picture, generator: str) -> bytes:
    """A PNG as tall as its figures; long token lists are folded, as on the page."""
    from clew.pages.png import draw_png  # matplotlib is slow to import

    cards = [_draw_card(answer) for answer in picture.answers]
    tokens = [_print_tokens(answer) for answer in picture.answers]
    arcs = [draw_arcs(a, picture.layer, _ROWS) if a.graph else Html() for a in picture.answers]
    heads = [draw_heads(a, picture) if a.lookback is not None else Html() for a in picture.answers]
    latent = _draw_latent(picture)
    if len(cards) > 1:
        rows = [cards, tokens, arcs, latent, heads]
    else:
        rows = [cards, [join(tokens, arcs), join(latent, heads)]]
    title = tag("h1", f"{picture.title}, layer {picture.layer}")
    return draw_png(
        rows,
        pixels=_PIXELS,
        head=join(title, tag("p", picture.origin, class_="quiet")),
        style=_read("style.css"),
        software=generator,
    )


def _print_tokens(answer: ShownAnswer) -> Html:
    """The tokens as boxes line by line, while there is room: what the page lays out as HTML."""
    if answer.logprobs is None or not len(answer.logprobs):
        return Html()
    chances = np.exp(answer.logprobs).tolist()
    doubts = [1 - chance for chance in chances] if answer.risks is None else answer.risks.tolist()
    by, words = _shade(answer)
    boxes: list[Html] = []
    x, y = 0.0, 0
    for text, chance, doubt in zip(answer.answer_texts, chances, doubts, strict=True):
        letters = shorten(visible_text(text), _LONGEST)
        wide = max(38, 12 + _LETTER * len(letters))
        if x + wide > _WIDTH:
            x, y = 0.0, y + _LINE
        if y == _LINE * _MOST_LINES:
            y -= _LINE
            break
        boxes.append(_print_token(letters, chance, doubt, x, y, wide, by))
        x += wide + 4
    more = len(chances) - len(boxes)
    rest = f" (without the last {more:,} tokens)" if more else ""
    told = tag("h3", f"Token probabilities{rest}. {describe_probabilities(answer)}")
    y += _LINE
    scale = [
        rect(
            _SCALE * step, y, _SCALE, 11, class_=by, style=f"fill-opacity:{_DEEPEST * step / 8:.2f}"
        )
        for step in range(9)
    ]
    legend = tag("text", words, x=_SCALE * 9 + 8, y=y + 10, class_="tick")
    box = f"0 0 {_WIDTH} {y + _LINE / 2}"
    return join(told, tag("svg", boxes, scale, legend, viewBox=box, class_="chips"))


def _print_token(
    words: str, chance: float, doubt: float, x: float, y: float, wide: float, by: str
) -> Html:
    bar, shade = (wide - 10) * chance, f"fill-opacity:{_DEEPEST * doubt:.2f}"
    return tag(
        "g",
        rect(x, y, wide, _LINE - 6, class_=by, style=shade),
        tag("text", words, x=x + 5, y=y + 15),
        rect(x + 5, y + 20, bar, 4, class_="chance"),
        tag("text", percent_text(chance), x=x + 5, y=y + 37, class_="tick"),
    )


def _sections(picture: Picture) -> list[Html | None]:
    answers, layer, latent = picture.answers, picture.layer, picture.latent
    tokens = arcs = states = heads = None
    if any(answer.logprobs is not None for answer in answers):
        tokens = _section("probabilities", [_draw_probabilities(answer) for answer in answers])
    if any(answer.graph for answer in answers):
        arcs = _section("attention", [draw_arcs(answer, layer) for answer in answers])
    if latent is not None:
        states = _section(
            "latent",
            _draw_latent(picture),
            share=sum(latent.explained),
            answers=latent.fitted_on,
            fitted=_FITTED if latent.bands else "",
        )
    if any(answer.lookback is not None for answer in answers):
        heads = _section("heads", [draw_heads(answer, picture) for answer in answers])
    return [
        tag("header", tag("h1", picture.title), tag("p", picture.origin)),
        tag("div", [_draw_card(answer) for answer in answers], class_="columns"),
        tokens,
        _toolbar(picture),
        tag("div", arcs, tag("div", states, heads), class_="layered"),
        _footer(picture),
    ]


def _section(name: str, figures: list[Html], **values: object) -> Html:
    texts = section_texts(str(__package__), name, **values)
    words = tag("p", texts["lead"], class_="words")
    columns = tag("div", figures, class_="columns")
    return tag("section", tag("h2", texts["title"]), words, columns, class_=name)


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


def _draw_latent(picture: Picture) -> list[Html]:
    latent = picture.latent
    if latent is None:
        return []
    places = [draw_places(picture, latent)] if latent.bands else []
    return [draw_paths(picture, latent), *places]


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


def _script_data(picture: Picture) -> Html:
    """JSON that is safe inside a <script> element."""
    graphs = [
        graph_data(answer, view)
        for answer in picture.answers
        if answer.graph
        for view in views_of(answer)
    ]
    data = without_nan({"layer": picture.layer, "graphs": graphs})
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _read(name: str) -> Html:
    return Html(files("clew.hallucination.answer_page").joinpath(name).read_text(encoding="utf-8"))


def _draw_card(answer: ShownAnswer) -> Html:
    facts = [
        ("question", answer.question),
        ("answer", answer.answer or "(empty)"),
        ("accepted", accepted_text(answer)),
    ]
    return tag(
        "article",
        tag("p", _chip(answer), f" {describe_source(answer)}", class_="quiet"),
        tag("dl", _context(answer), [_fact(*fact) for fact in facts], _verdict(answer)),
        class_=f"card {kind_class(answer.kind)}",
    )


def _context(answer: ShownAnswer) -> Html | None:
    """The text that the question is about; a long one unfolds."""
    text = answer.context
    if not text:
        return None
    if len(text) <= _LONGEST_CONTEXT:
        return _fact("context", text)
    start = f"{text[:_LONGEST_CONTEXT].rstrip()} ..."
    return _fact("context", tag("details", tag("summary", start), text))


def _fact(name: str, *content: Child) -> Html:
    return tag("div", tag("dt", name), tag("dd", *content))


def _verdict(answer: ShownAnswer) -> Html | None:
    """The risk on a line from 0 to 1, with the threshold."""
    verdict = answer.verdict
    if verdict is None:
        return None
    line = tag(
        "span",
        tag("i", class_="threshold", style=f"left:{100 * verdict.threshold:.1f}%"),
        tag("i", class_="risk", style=f"left:{100 * verdict.risk:.1f}%"),
        class_="gauge",
        role="img",
        aria_label=f"risk {verdict.risk:.3f} of 1, threshold {verdict.threshold:.3f}",
    )
    return _fact(
        "detector",
        tag("b", _RULINGS[verdict.is_flagged, answer.kind]),
        " ",
        tell_verdict(answer),
        line,
    )


def _chip(answer: ShownAnswer) -> Html:
    words = answer.kind or "no label"
    score = "" if answer.score is None else f" (score {answer.score:.2f})"
    hint = None if answer.score is None else "score of the label: 1 = correct, 0 = hallucinated"
    return tag("b", words + score, class_="chip", title=hint)


def _draw_probabilities(answer: ShownAnswer) -> Html:
    if answer.logprobs is None:
        missing = tag("p", "The token probabilities are not stored.", class_="quiet")
        return tag("div", missing)
    entropies = answer.entropies if answer.entropies is not None else np.zeros(len(answer.logprobs))
    chances = np.exp(answer.logprobs)
    risks = [None] * len(chances) if answer.risks is None else answer.risks.tolist()
    tokens = zip(answer.answer_texts, chances.tolist(), entropies.tolist(), risks, strict=True)
    chips = tag(
        "div", [_token(place, *token) for place, token in enumerate(tokens)], class_="tokens"
    )
    by, words = _shade(answer)
    scale = tag("p", tag("i"), words, class_="shade quiet")
    summary = tag("p", describe_probabilities(answer), class_="summary")
    shaded = tag("div", scale, chips, class_=by)
    return tag("div", summary, shaded, class_=kind_class(answer.kind))


def _shade(answer: ShownAnswer) -> tuple[str, str]:
    """The class of the background of tokens, and what its scale means: a risk is not a probability,
    so the two never look alike."""
    if answer.risks is None:
        return "by-chance", "background: 1 \N{MINUS SIGN} probability, from 0 to 1"
    return "by-risk", "background: token risk, from 0 to 1"


def _token(place: int, text: str, chance: float, entropy: float, risk: float | None) -> Html:
    # A token that continues a word is joined to the one before it.
    joined = " joined" if place and text[:1].isalnum() else ""
    height = min(1.0, entropy / _HIGH_ENTROPY)
    doubt = 1 - chance if risk is None else risk
    told = "" if risk is None else f"risk {risk:.2f}, "
    tints = {"doubt": f"{doubt:.2f}", "chance": f"{chance:.3f}", "entropy": f"{height:.3f}"}
    return tag(
        "span",
        tag("span", visible_text(text), class_="text"),
        tag("i", class_="bar"),
        tag("i", class_="line"),
        tag("small", percent_text(chance)),
        class_=f"token{joined}",
        style=";".join(f"--{name}:{value}" for name, value in tints.items()),
        title=f"{told}probability {chance:.4f}, log-probability "
        f"{np.log(max(chance, 1e-30)):.2f}, entropy {entropy:.2f} nats",
    )
