"""The trace of an answer as JSON for the page: tokens, attention, risk through the layers and the
nearest known answers."""

from collections.abc import Sequence
from typing import Any

from clew.hallucination.answer_page.picture import (
    ShownAnswer,
    accepted_text,
    describe_probabilities,
    graph_data,
    views_of,
)
from clew.hallucination.detectors.similar_answers import KnownAnswers
from clew.hallucination.traces.token_texts import visible_text

_NEAREST = 8


def describe_trace(
    answer: ShownAnswer,
    known: KnownAnswers | None,
    why_unknown: str,
    *,
    risk: dict[str, Any] | None,
    is_stored: bool,
    has_links: bool = True,
    token_risks: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Everything that the page shows of an answer. `risk` is as in the API, None without one;
    `why_unknown` says why there are no known answers, or no probes on them. `has_links`: the known
    answers can be opened in the explorer."""
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
        "tokens": _describe_tokens(answer, token_risks),
        "summary": describe_probabilities(answer),
        "layers": answer.layers,
        "graphs": _describe_graphs(answer),
        "course": _describe_course(answer, known, number),
        "near": _describe_near(answer, known, number),
        "has_links": has_links,
        "known": why_unknown,
        "notes": list(answer.notes),
    }


def _describe_tokens(answer: ShownAnswer, risks: Sequence[float] | None) -> list[dict[str, Any]]:
    texts = answer.answer_texts
    own: Sequence[float | None] = risks or [None] * len(texts)
    logprobs = [None] * len(texts) if answer.logprobs is None else answer.logprobs.tolist()
    entropies = [None] * len(texts) if answer.entropies is None else answer.entropies.tolist()
    return [
        {"token": text, "shown": visible_text(text), "logprob": p, "entropy": h, "risk": risk}
        for text, p, h, risk in zip(texts, logprobs, entropies, own, strict=True)
    ]


def _describe_graphs(answer: ShownAnswer) -> list[dict[str, Any]]:
    """With the prompt folded and, if that hides anything, with the whole prompt."""
    if answer.graph is None:
        return []
    return [graph_data(answer, view) for view in views_of(answer)]


def _describe_course(
    answer: ShownAnswer, known: KnownAnswers | None, number: int | None
) -> dict[str, Any] | None:
    """The risk at every layer from the probes on the known answers."""
    if known is None or known.probes is None or answer.states is None:
        return None
    risks = known.risks(answer.states, number)
    if risks is None:
        return None
    return {
        "risks": [round(risk, 4) for risk in risks],
        "aurocs": [round(value, 3) for value in known.probes.aurocs],
        "base_rate": round(known.base_rate, 4),
        "answers": len(known.texts),
    }


def _describe_near(
    answer: ShownAnswer, known: KnownAnswers | None, number: int | None
) -> dict[str, Any] | None:
    if known is None or answer.states is None:
        return None
    found, texts = known.nearest(answer.states, number, _NEAREST), known.texts
    items = [
        {
            "number": int(texts.numbers[one.row]),
            "question": texts.questions[one.row],
            "answer": texts.answers[one.row],
            "label": texts.label_at(one.row),
            "similarity": one.similarity,
        }
        for one in found
    ]
    labels = [item["label"] for item in items if item["label"] is not None]
    return {
        "layer": known.layer,
        "answers": len(texts),
        "hallucinated": labels.count("hallucinated"),
        "labeled": len(labels),
        "items": items,
    }
