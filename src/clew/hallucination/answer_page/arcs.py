"""The attention graph on the page: a row a token; the script draws the arcs of a layer."""

from typing import Any

import numpy as np

from clew.hallucination.answer_page.answer import ShownAnswer
from clew.hallucination.answer_page.cards import kind_class
from clew.hallucination.answer_page.graph import Rows, fold_rows
from clew.hallucination.answer_page.tokens import shorten, visible_text
from clew.pages.markup import Html, tag

PAGE_ROWS = 200
_ROW, _ARCS, _WIDTH, _TOP = 16, 330, 540, 10
_LONGEST = 24
_WHOLE = 1000  # weights travel as whole numbers of thousandths


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
