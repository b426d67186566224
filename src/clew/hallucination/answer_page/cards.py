"""The answer on the page, token by token: in words, how sure the model was, and what each token
looked at (the script draws the arcs of a layer)."""

from typing import Any

import numpy as np

from clew.hallucination.answer_page.graph import Rows, fold_rows
from clew.hallucination.answer_page.picture import ShownAnswer
from clew.hallucination.answer_page.tokens import shorten, visible_text
from clew.pages.markup import Html, tag

_MOST_ACCEPTED = 8
_HIGH_ENTROPY = 4.0  # nats; the line of a token with more is full
PAGE_ROWS = 200
_ROW, _ARCS, _WIDTH, _TOP = 16, 330, 540, 10
_LONGEST = 24
_WHOLE = 1000  # weights travel as whole numbers of thousandths


def kind_class(answer: ShownAnswer) -> str:
    return {"right": "right", "made up": "made-up"}.get(answer.kind or "", "unknown")


def draw_card(answer: ShownAnswer) -> Html:
    facts = [
        ("question", answer.question),
        ("answer", answer.answer or "(empty)"),
        ("right answers", accepted_text(answer)),
    ]
    return tag(
        "article",
        tag("p", _chip(answer), f" {describe_source(answer)}", class_="quiet"),
        tag("dl", [tag("div", tag("dt", name), tag("dd", words)) for name, words in facts]),
        class_=f"card {kind_class(answer)}",
    )


def accepted_text(answer: ShownAnswer) -> str:
    more = len(answer.accepted) - _MOST_ACCEPTED
    words = "; ".join(answer.accepted[:_MOST_ACCEPTED]) or "(not known)"
    return f"{words} and {more:,} more" if more > 0 else words


def describe_source(answer: ShownAnswer) -> str:
    """Number, question id and category, in one line."""
    parts = [f"answer {answer.number}", answer.question_id]
    parts += [answer.category] if answer.category else []
    parts += [f"stopped by {answer.stop_reason}"] if answer.stop_reason else []
    return " · ".join(parts)


def describe_sureness(answer: ShownAnswer) -> str:
    """The whole answer in one sentence; empty when its probabilities are not stored."""
    if answer.logprobs is None or answer.perplexity is None:
        return ""
    least = int(np.argmin(answer.logprobs))
    word = visible_text(answer.answer_texts[least])
    chance = percent_text(float(np.exp(answer.logprobs[least])))
    return f"Perplexity {answer.perplexity:.2f}; least sure of “{word}” ({chance})."


def percent_text(share: float) -> str:
    if 0 < share < 0.01:
        return "<1%"
    return f"{min(share, 0.99 if share < 1 else 1.0):.0%}"


def _chip(answer: ShownAnswer) -> Html:
    words = answer.kind or "no label"
    score = "" if answer.score is None else f" (score {answer.score:.2f})"
    return tag("b", words + score, class_="chip")


def draw_sureness(answer: ShownAnswer) -> Html:
    if answer.logprobs is None:
        missing = tag("p", "The probabilities of the tokens are not stored.", class_="quiet")
        return tag("div", missing)
    entropies = answer.entropies if answer.entropies is not None else np.zeros(len(answer.logprobs))
    chances = np.exp(answer.logprobs)
    tokens = zip(answer.answer_texts, chances.tolist(), entropies.tolist(), strict=True)
    chips = tag(
        "div", [_token(place, *token) for place, token in enumerate(tokens)], class_="tokens"
    )
    summary = tag("p", describe_sureness(answer), class_="summary")
    return tag("div", summary, chips, class_=kind_class(answer))


def _token(place: int, text: str, chance: float, entropy: float) -> Html:
    # A token that goes on with a word stands close to the one before it.
    joined = " joined" if place and text[:1].isalnum() else ""
    height = min(1.0, entropy / _HIGH_ENTROPY)
    tints = {"doubt": f"{1 - chance:.2f}", "chance": f"{chance:.3f}", "entropy": f"{height:.3f}"}
    return tag(
        "span",
        tag("span", visible_text(text), class_="text"),
        tag("i", class_="bar"),
        tag("i", class_="line"),
        tag("small", percent_text(chance)),
        class_=f"token{joined}",
        style=";".join(f"--{name}:{value}" for name, value in tints.items()),
        title=f"probability {chance:.4f}, log-probability "
        f"{np.log(max(chance, 1e-30)):.2f}, entropy {entropy:.2f} nats",
    )


def draw_arcs(answer: ShownAnswer) -> Html:
    if answer.graph is None:
        return tag("div", tag("p", "Its attention is not stored.", class_="quiet"))
    rows = fold_rows(answer.graph.tokens, answer.prompt_length, PAGE_ROWS)
    height = _TOP * 2 + _ROW * len(rows)
    picture = tag(
        "svg",
        _border(answer, rows),
        tag("g", class_="arcs"),
        [_row(answer, rows, row) for row in range(len(rows))],
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"attention graph of answer {answer.number}",
        data_x=_ARCS,
        data_row=_ROW,
        data_top=_TOP,
    )
    shares = tag("p", class_="shares summary")
    focus = tag("p", class_="focus quiet")
    return tag("figure", shares, focus, picture, class_=f"graph {kind_class(answer)}")


def row_text(answer: ShownAnswer, rows: Rows, row: int) -> str:
    if row in rows.folded:
        return f"… {rows.folded[row]:,} tokens …"
    return shorten(visible_text(answer.texts[rows.token[row]]), _LONGEST)


def first_answer_row(answer: ShownAnswer, rows: Rows) -> int:
    """The row where the answer begins, the number of rows when it is empty."""
    if answer.prompt_length >= len(rows.of_token):
        return len(rows)
    return int(rows.of_token[answer.prompt_length])


def graph_data(answer: ShownAnswer, limit: int) -> dict[str, Any]:
    """What the script needs: the edges of every layer, flat (source, target, thousandths)."""
    graph = answer.graph
    assert graph is not None
    rows = fold_rows(graph.tokens, answer.prompt_length, limit)
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
