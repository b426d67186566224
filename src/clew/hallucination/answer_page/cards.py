"""The answer on the page: its texts and a detector's verdict, its token probabilities, and its
attention arcs (the script redraws them for another layer)."""

from typing import Any

import numpy as np

from clew.hallucination.answer_page.graph import Rows, fold_rows
from clew.hallucination.answer_page.picture import ShownAnswer
from clew.hallucination.traces.token_texts import shorten, visible_text
from clew.pages.markup import Child, Html, tag

_MOST_ACCEPTED = 8
_HIGH_ENTROPY = 4.0  # nats; at this entropy the bar is full
PAGE_ROWS = 200
_ROW, _ARCS, _WIDTH, _TOP = 16, 330, 540, 10
_LONGEST = 24
_LONGEST_CONTEXT = 240
_WHOLE = 1000  # weights are stored as integer thousandths


def kind_class(answer: ShownAnswer) -> str:
    return answer.kind or "unknown"


def draw_card(answer: ShownAnswer) -> Html:
    facts = [
        ("question", answer.question),
        ("answer", answer.answer or "(empty)"),
        ("accepted", accepted_text(answer)),
    ]
    return tag(
        "article",
        tag("p", _chip(answer), f" {describe_source(answer)}", class_="quiet"),
        tag("dl", _context(answer), [_fact(*fact) for fact in facts], _verdict(answer)),
        class_=f"card {kind_class(answer)}",
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
        aria_label=f"risk {verdict.risk:.2f} of 1, threshold {verdict.threshold:.2f}",
    )
    return _fact("detector", tag("b", _RULINGS[_outcome(answer)]), " ", tell_verdict(answer), line)


def tell_verdict(answer: ShownAnswer) -> str:
    verdict = answer.verdict
    assert verdict is not None
    side = "above" if verdict.is_flagged else "not above"
    return (
        f"{verdict.method}: risk {verdict.risk:.2f}, {side} the threshold of "
        f"{verdict.threshold:.2f}."
    )


def _outcome(answer: ShownAnswer) -> tuple[bool, str | None]:
    assert answer.verdict is not None
    return answer.verdict.is_flagged, answer.kind


_RULINGS = {
    (True, "hallucinated"): "Correctly flagged.",
    (True, "correct"): "Flagged: a false alarm.",
    (True, None): "Flagged as hallucinated.",
    (False, "hallucinated"): "Not flagged: a missed hallucination.",
    (False, "correct"): "Correctly not flagged.",
    (False, None): "Not flagged.",
}


def accepted_text(answer: ShownAnswer) -> str:
    more = len(answer.accepted) - _MOST_ACCEPTED
    words = "; ".join(answer.accepted[:_MOST_ACCEPTED]) or "(unknown)"
    return f"{words} and {more:,} more" if more > 0 else words


def describe_source(answer: ShownAnswer) -> str:
    """Number, question id, category and stop reason, on one line."""
    parts = [f"answer {answer.number}", answer.question_id]
    parts += [answer.category] if answer.category else []
    parts += [f"stop reason: {answer.stop_reason}"] if answer.stop_reason else []
    return " · ".join(parts)


def describe_probabilities(answer: ShownAnswer) -> str:
    """The answer in one sentence; empty when its probabilities are not stored."""
    if answer.logprobs is None or answer.perplexity is None:
        return ""
    least = int(np.argmin(answer.logprobs))
    word = visible_text(answer.answer_texts[least])
    chance = percent_text(float(np.exp(answer.logprobs[least])))
    return f"Perplexity {answer.perplexity:.2f}; least likely token: “{word}” ({chance})."


def percent_text(share: float) -> str:
    if 0 < share < 0.01:
        return "<1%"
    return f"{min(share, 0.99 if share < 1 else 1.0):.0%}"


def _chip(answer: ShownAnswer) -> Html:
    words = answer.kind or "no label"
    score = "" if answer.score is None else f" (score {answer.score:.2f})"
    hint = None if answer.score is None else "score of the label: 1 = correct, 0 = hallucinated"
    return tag("b", words + score, class_="chip", title=hint)


def draw_probabilities(answer: ShownAnswer) -> Html:
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
    shaded = "" if answer.risks is None else " Tokens are shaded by their risk."
    summary = tag("p", f"{describe_probabilities(answer)}{shaded}", class_="summary")
    return tag("div", summary, chips, class_=kind_class(answer))


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


def short_rows(answer: ShownAnswer, limit: int) -> Rows:
    """Rows of the attention graph with the prompt folded to the question."""
    assert answer.graph is not None
    kept = answer.question_tokens
    return fold_rows(answer.graph.tokens, answer.prompt_length, limit, kept)


def views_of(answer: ShownAnswer) -> list[Rows]:
    """The rows with the prompt folded and, if that hides anything, with the whole prompt."""
    assert answer.graph is not None
    short = short_rows(answer, PAGE_ROWS)
    whole = fold_rows(answer.graph.tokens, answer.prompt_length, PAGE_ROWS)
    return [short, whole] if len(whole) > len(short) else [short]


def draw_arcs(answer: ShownAnswer, layer: int) -> Html:
    """A figure per view; the page shows one of them."""
    if answer.graph is None:
        return tag("div", tag("p", "The attention of this answer is not stored.", class_="quiet"))
    views = views_of(answer)
    names = ("short", "whole") if len(views) > 1 else ("only",)
    pairs = zip(views, names, strict=True)
    return tag("div", [_draw_view(answer, rows, layer, name) for rows, name in pairs])


def _draw_view(answer: ShownAnswer, rows: Rows, layer: int, name: str) -> Html:
    height = _TOP * 2 + _ROW * len(rows)
    picture = tag(
        "svg",
        _border(answer, rows),
        tag("g", _arcs(answer, rows, layer) if name != "whole" else None, class_="arcs"),
        [_row(answer, rows, row) for row in range(len(rows))],
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"attention graph of answer {answer.number}",
        data_x=_ARCS,
        data_row=_ROW,
        data_top=_TOP,
    )
    shares = tag("p", tell_shares(answer, layer), class_="shares summary")
    focus = tag("p", class_="focus quiet")
    return tag("figure", shares, focus, picture, class_=f"graph {name} {kind_class(answer)}")


def tell_shares(answer: ShownAnswer, layer: int) -> str:
    """A sentence on where the attention goes in a layer; page.js writes the same one for other
    layers."""
    assert answer.graph is not None
    share = answer.graph.shares(layer)
    whose = "the answer" if answer.prompt_length < answer.graph.tokens else "all tokens"
    return (
        f"Attention of {whose} in layer {layer}: {percent_text(share.first)} on the first token, "
        f"{percent_text(share.prompt)} on the rest of the prompt, {percent_text(share.answer)} on "
        f"earlier tokens of the answer, {percent_text(share.itself)} on the token itself, "
        f"{percent_text(share.unstored)} on weaker edges that are not stored."
    )


def _arcs(answer: ShownAnswer, rows: Rows, layer: int) -> list[Html]:
    """The attention arcs of a layer, without those to the first token and those within the prompt;
    page.js draws the same."""
    assert answer.graph is not None
    start, edges = first_answer_row(answer, rows), answer.graph.edges(layer, rows)
    flat = zip(edges.source.tolist(), edges.target.tolist(), edges.weight.tolist(), strict=True)
    return [
        _arc(source, target, weight, len(rows), "to-prompt" if source < start else "to-answer")
        for source, target, weight in reversed(list(flat))
        if source > 0 and (target >= start or start == len(rows))
    ]


def _arc(source: int, target: int, weight: float, rows: int, name: str) -> Html:
    first, last = (_TOP + _ROW * (row + 0.5) for row in (target, source))
    bow = (_ARCS - 14) * 1.3 * ((target - source) / max(1, rows - 1)) ** 0.62
    left = f"{_ARCS - bow:.1f}"
    width, opacity = 0.6 + 9 * weight, min(0.9, 0.08 + 4.5 * weight)
    return tag(
        "path",
        d=f"M{_ARCS} {first:g}C{left} {first:g} {left} {last:g} {_ARCS} {last:g}",
        style=f"stroke-width:{width:.2f};opacity:{opacity:.2f}",
        class_=name,
    )


def row_text(answer: ShownAnswer, rows: Rows, row: int) -> str:
    if row in rows.folded:
        return f"… {rows.folded[row]:,} tokens …"
    return shorten(visible_text(answer.texts[rows.token[row]]), _LONGEST)


def first_answer_row(answer: ShownAnswer, rows: Rows) -> int:
    """The row where the answer starts, the number of rows when it is empty."""
    if answer.prompt_length >= len(rows.of_token):
        return len(rows)
    return int(rows.of_token[answer.prompt_length])


def graph_data(answer: ShownAnswer, rows: Rows) -> dict[str, Any]:
    """What the script needs: the edges of every layer, flat (source, target, thousandths)."""
    graph = answer.graph
    assert graph is not None
    edges, shares = [], []
    for layer in range(len(graph.weights)):
        found, share = graph.edges(layer, rows), graph.shares(layer)
        weight = np.rint(found.weight * _WHOLE).astype(int)
        flat = np.stack([found.source, found.target, weight], axis=1).reshape(-1)
        edges.append(flat.tolist())
        parts = (share.first, share.prompt, share.answer, share.itself, share.unstored)
        shares.append([round(part, 3) for part in parts])
    return {
        "texts": [row_text(answer, rows, row) for row in range(len(rows))],
        "start": first_answer_row(answer, rows),
        "edges": edges,
        "shares": shares,
    }


def _row(answer: ShownAnswer, rows: Rows, row: int) -> Html:
    y = _TOP + _ROW * (row + 0.5)
    part = "answer" if row >= first_answer_row(answer, rows) else "prompt"
    folded = " folded" if row in rows.folded else ""
    whole = None if row in rows.folded else repr(answer.texts[rows.token[row]])
    return tag(
        "g",
        tag("rect", x=_ARCS - 8, y=y - _ROW / 2, width=_WIDTH - _ARCS + 8, height=_ROW),
        tag("circle", cx=_ARCS, cy=y, r=2),
        tag("text", row_text(answer, rows, row), x=_ARCS + 14, y=y + 4),
        tag("title", whole) if whole else None,
        class_=f"row {part}{folded}",
        data_at=row,
    )


def _border(answer: ShownAnswer, rows: Rows) -> Html | None:
    start = first_answer_row(answer, rows)
    if start in (0, len(rows)):
        return None
    y = _TOP + _ROW * start
    return tag(
        "g",
        tag("line", x1=_ARCS - 8, x2=_WIDTH, y1=y, y2=y),
        tag("text", "prompt", x=_WIDTH - 4, y=y - 5),
        tag("text", "answer", x=_WIDTH - 4, y=y + 13),
        class_="border",
    )
