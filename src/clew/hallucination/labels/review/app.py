"""The web app of a review of labels: the open answer, and a person's decisions."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from clew.errors import Call, ClewError, InputError
from clew.hallucination.labels.review.session import LabelReview, ReviewedAnswer
from clew.pages.server import LocalServer, open_server

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

_FILES = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
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
    from fastapi import BackgroundTasks, FastAPI, HTTPException, Response
    from fastapi.exceptions import RequestValidationError

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    def reply(status: int = 200, **more: str) -> Response:
        """The current state. Escaped: answers may hold what is not valid text."""
        content = json.dumps({**describe_state(review, hints), **more})
        return Response(content, status_code=status, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    def explain(_: object, error: RequestValidationError) -> Response:
        with review.lock:
            return reply(422, error=_what_is_wrong(error.errors()))

    @app.get("/state")
    def state() -> Response:
        with review.lock:
            return reply()

    @app.post("/answer")
    def answer(given: PageDecision) -> Response:
        with review.lock:
            status, content = _take(review, given)
            return reply(status, **content)

    @app.post("/done")
    def done(after: BackgroundTasks) -> dict[str, bool]:
        after.add_task(on_done)
        return {"done": True}

    @app.get("/{name:path}")
    def page(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        content = files("clew.hallucination.labels.review").joinpath(name or "page.html")
        return Response(content.read_bytes(), media_type=_FILES[name])

    return app


def _what_is_wrong(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first error of a request, without what it contained."""
    where = ".".join(str(part) for part in errors[0]["loc"][1:])
    return f"The request is not valid: {where or 'body'}: {errors[0]['msg']}. Nothing was changed."


def _take(review: LabelReview, given: PageDecision) -> tuple[int, dict[str, str]]:
    """The status, and the message; a decision on another answer than the open one changes nothing
    (a key pressed twice, a second tab)."""
    if given.question != review.place:
        return 409, {"error": "The page was out of date: this is the current answer."}
    try:
        return 200, {"message": _carry_out(review, given)}
    except InputError as error:
        return 400, {"error": str(error)}
    except ClewError as error:
        return 507, {"error": str(error)}
    except OSError as error:
        logger.warning("a decision could not be saved: %s", error)
        return 507, {"error": f'"{error.filename}": {error.strerror}. Nothing was changed.'}


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
