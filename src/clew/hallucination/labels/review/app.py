"""The web app of a review of labels: the open answer, and a person's decisions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clew.base.errors import Call
from clew.hallucination.labels.review.session import LabelReview, ReviewedAnswer
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server

if TYPE_CHECKING:
    from fastapi import FastAPI

_CLASSES = ("correct", "hallucinated", "refused", "excluded", "skipped")


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the page suggests: what to do `next`, and how to review what is left `again`."""

    next: str
    again: str


@dataclass(frozen=True, kw_only=True)
class PageDecision:
    """A person's decision; `question` is the number of the answer that was on the screen."""

    question: int
    action: Literal["correct", "hallucinated", "refused", "excluded", "keep", "skip", "undo"]


@contextmanager
def open_page(
    review: LabelReview, port: int = 0, hints: Hints | None = None
) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    shown = hints or _python_hints(review)
    with open_server(lambda stop: build_app(review, shown, stop), port) as server:
        yield server


def _python_hints(review: LabelReview) -> Hints:
    path = str(review.file.path)
    return Hints(
        next=str(Call("clew.preprocess", ("STORE",), {"scores_file": path})),
        again=str(Call("clew.label", ("STORE",), {"out": path, "review": True})),
    )


def build_app(review: LabelReview, hints: Hints, on_done: Callable[[], None]) -> "FastAPI":
    """The application; `on_done` is called at the end."""
    from fastapi import Response

    built = ReviewApp(review.lock, lambda: describe_state(review, hints), on_done)

    @built.app.post("/answer")
    def answer(given: PageDecision) -> Response:
        return built.decide(
            lambda: given.question == review.place, lambda: _carry_out(review, given)
        )

    return built.serve_page("clew.hallucination.labels.review")


def _carry_out(review: LabelReview, given: PageDecision) -> str:
    if given.action == "undo":
        return review.undo()
    if given.action == "skip":
        return review.skip()
    return review.keep() if given.action == "keep" else review.decide(given.action)


def describe_state(review: LabelReview, hints: Hints) -> dict[str, Any]:
    """Everything that the page shows."""
    counts, answer = review.counts(), review.current
    return {
        "place": review.place,
        "total": len(review.queue),
        "doubtful": review.doubtful,
        "answer": answer and _describe(answer),
        "counts": {name: counts[name] for name in _CLASSES},
        "can_undo": review.place > 0,
        "file": str(review.file.path),
        "command": hints.next,
        "again": hints.again,
    }


def _describe(answer: ReviewedAnswer) -> dict[str, Any]:
    row = answer.row
    return {
        "id": row.question_id,
        "category": row.category or "",
        "question": row.question,
        "answer": row.answer,
        "accepted": [text for text in row.accepted_answers if text],
        "label": answer.label,
        "reason": row.reason,
        "method": row.method,
        "doubt": answer.doubt.about,
    }
