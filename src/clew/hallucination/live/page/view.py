"""The trace of an answer as JSON for the page: tokens, attention, risk through the layers and the
nearest known answers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.answer_page.cards import (
    accepted_text,
    describe_probabilities,
    graph_data,
    views_of,
)
from clew.hallucination.answer_page.picture import ShownAnswer
from clew.hallucination.answer_page.tokens import visible_text
from clew.hallucination.live.page.index import AnswerIndex
from clew.hallucination.live.page.known import KnownAnswers

_NEAREST = 8


@dataclass(frozen=True, kw_only=True)
class Known:
    """Known answers and their texts; `why_not` says why there are none."""

    answers: KnownAnswers | None = None
    index: AnswerIndex | None = None
    why_not: str = ""


def describe_trace(
    answer: ShownAnswer,
    known: Known,
    *,
    risk: dict[str, Any] | None,
    is_stored: bool,
) -> dict[str, Any]:
    """Everything that the page shows of an answer. `risk` is as in the API, None without one."""
    number = answer.number if is_stored else None
    return {
        "number": number,
        "question_id": answer.question_id if is_stored else None,
        "question": answer.question,
        "context": answer.context,
        "answer": answer.answer,
        "accepted": accepted_text(answer) if answer.accepted else None,
        "category": answer.category,
        "ended": answer.stop_reason,
        "label": answer.kind,
        "score": answer.score,
        "clew": risk,
        "tokens": _describe_tokens(answer),
        "summary": describe_probabilities(answer),
        "layers": answer.layers,
        "graphs": _describe_graphs(answer),
        "course": _describe_course(answer, known, number),
        "near": _describe_near(answer, known, number),
        "known": known.why_not,
        "notes": list(answer.notes),
    }


def _describe_tokens(answer: ShownAnswer) -> list[dict[str, Any]]:
    texts = answer.answer_texts
    logprobs = [None] * len(texts) if answer.logprobs is None else answer.logprobs.tolist()
    entropies = [None] * len(texts) if answer.entropies is None else answer.entropies.tolist()
    return [
        {"token": text, "shown": visible_text(text), "logprob": p, "entropy": h, "risk": None}
        for text, p, h in zip(texts, logprobs, entropies, strict=True)
    ]


def _describe_graphs(answer: ShownAnswer) -> list[dict[str, Any]]:
    """With the prompt folded and, if that hides anything, with the whole prompt."""
    if answer.graph is None:
        return []
    return [graph_data(answer, rows) for rows in views_of(answer)]


def _describe_course(
    answer: ShownAnswer, known: Known, number: int | None
) -> dict[str, Any] | None:
    """The risk at every layer from the probes on the known answers."""
    probes = None if known.answers is None else known.answers.probes
    if known.answers is None or probes is None or answer.states is None:
        return None
    risks = known.answers.risks(answer.states, number)
    if risks is None:
        return None
    return {
        "risks": [round(risk, 4) for risk in risks],
        "aurocs": [round(value, 3) for value in probes.aurocs],
        "base_rate": round(probes.base_rate, 4),
        "answers": len(known.answers.numbers),
    }


def _describe_near(answer: ShownAnswer, known: Known, number: int | None) -> dict[str, Any] | None:
    if known.answers is None or known.index is None or answer.states is None:
        return None
    found = known.answers.nearest(answer.states, number, _NEAREST)
    items = []
    for neighbor in found:
        row = known.index.row_of(neighbor.number)
        if row is not None:
            items.append({**known.index.describe(row), "similarity": neighbor.similarity})
    labels = [item["label"] for item in items if item["label"] is not None]
    return {
        "layer": known.answers.layer,
        "answers": len(known.answers.numbers),
        "hallucinated": int(np.sum([label == "hallucinated" for label in labels])),
        "labeled": len(labels),
        "items": items,
    }
