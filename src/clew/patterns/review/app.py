"""The review's web app: the open question, photos of the queue, answers."""

import io
import logging
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from clew.base.terminal import TextConsole
from clew.base.texts import whole_percent
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.library.choose import Chosen
from clew.patterns.photos.decode import PhotoError, open_photo
from clew.patterns.review.session import (
    Question,
    Review,
    ReviewConfig,
    describe_new_classes,
    open_review,
    safe_text,
)
from clew.patterns.review.terminal import Dialogue, open_keys

if TYPE_CHECKING:
    from fastapi import FastAPI


_PHOTO_SIDE = 1600
_QUALITY = 88


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the page suggests next: `train` with the decisions, or review what is left `again`."""

    train: str
    again: str


@dataclass(frozen=True, kw_only=True)
class PageAnswer:
    """A person's answer; `question` is the number of the one that was on the screen."""

    question: int
    action: Literal["approve", "correct", "skip", "undo"]
    label: str = ""


@contextmanager
def open_page(review: Review, port: int = 0, hints: Hints | None = None) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    shown = hints or Hints(train=str(review.next_call), again=str(review.again_call))
    with open_server(lambda stop: build_app(review, shown, stop), port) as server:
        yield server


def build_app(review: Review, hints: Hints, on_done: Callable[[], None]) -> "FastAPI":
    """The application; `on_done` is called at the end."""
    from fastapi import HTTPException, Response

    built = ReviewApp(review.lock, lambda: describe_state(review, hints), on_done)

    @built.app.get("/photos/{number}")
    def photo(number: int) -> Response:
        if not 0 <= number < len(review.queue.questions):
            raise HTTPException(404)
        try:
            content = encode_photo(review.queue.questions[number].path, side=_PHOTO_SIDE)
        except PhotoError as error:
            return Response(error.reason, status_code=410, media_type="text/plain")
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(content, media_type="image/jpeg", headers=headers)

    @built.app.post("/answer")
    def answer(given: PageAnswer) -> Response:
        return built.decide(
            lambda: given.question == review.place, lambda: _carry_out(review, given)
        )

    return built.serve_page("clew.patterns.review")


def _carry_out(review: Review, answer: PageAnswer) -> str:
    if answer.action == "undo":
        return f"Undone: {review.undo().name}"
    if answer.action == "skip":
        review.skip()
        return "Skipped"
    decision = review.approve() if answer.action == "approve" else review.correct(answer.label)
    return review.describe(decision)


def describe_state(review: Review, hints: Hints) -> dict[str, Any]:
    """Everything that the page shows. Photos are identified only by their number in the queue."""
    question = review.current
    total, counts = len(review.queue.questions), review.counts()
    return {
        "place": review.place,
        "total": total,
        "question": question and _describe(question, review),
        "following": review.place + 1 if review.place + 1 < total else None,
        "counts": {name: counts[name] for name in ("approved", "corrected", "skipped")},
        "can_undo": review.place > 0,
        "new_classes": describe_new_classes(review.new_classes()),
        "moves": review.moves,
        "folder": safe_text(review.folder),
        "command": safe_text(hints.train),
        "again": safe_text(hints.again),
    }


def _describe(question: Question, review: Review) -> dict[str, Any]:
    keys = {choice.label: choice.key for choice in review.choices()}
    guesses = [
        {
            "label": guess.label,
            "key": keys.get(guess.label, ""),
            "probability": guess.probability,
            "text": whole_percent(guess.probability),
        }
        for guess in question.guesses
    ]
    return {"name": safe_text(question.title), "guesses": guesses, "keys": keys}


def encode_photo(path: Path, *, side: int) -> bytes:
    """A JPEG that any browser shows, no side longer than `side`. Raises PhotoError.

    No metadata of the file is sent: no location, no date, nothing but pixels.
    """
    picture = open_photo(path, at_least=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReviewResult:
    """The decisions of a review: `counts` of approved, corrected and skipped photos, `left` the
    number not yet reviewed, `folder` where the photos were put."""

    counts: dict[str, int]
    left: int
    folder: str


def run_review(
    chosen: Chosen,
    config: ReviewConfig,
    *,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
) -> ReviewResult:
    """Ask a person, in the terminal or in the browser. Raises what `open_review` does."""
    with open_review(chosen, config) as opened:
        if opened.queue.questions and web:
            _serve(opened, port, browser)
        elif opened.queue.questions:
            _ask(opened)
        left = len(opened.queue.questions) - opened.place
        return ReviewResult(counts=dict(opened.counts()), left=left, folder=opened.folder)


def _ask(opened: Review) -> None:
    console = TextConsole(soft_wrap=True)
    Dialogue(console, opened, open_keys(sys.stdin, console.print)).run()


def _serve(opened: Review, port: int, browser: bool) -> None:
    with open_page(opened, port) as server:
        logger.info("review page: %s", server.address)
        if browser:
            webbrowser.open(server.address)
        server.run()
