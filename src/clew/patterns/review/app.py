"""The review's web app: the open question, photos of the queue, answers."""

import io
import logging
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from clew.base.errors import Call
from clew.base.terminal import TextConsole
from clew.base.texts import for_terminal, whole_percent
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.identification.results import Identified
from clew.patterns.library.choose import Chosen
from clew.patterns.photos.decode import open_photo
from clew.patterns.photos.opening import PhotoError
from clew.patterns.review.session import (
    Review,
    ReviewConfig,
    describe_new_classes,
    open_review,
    title_of,
)
from clew.patterns.review.terminal import Dialogue, open_keys

if TYPE_CHECKING:
    from fastapi import FastAPI, Response


_PHOTO_SIDE = 1600
_QUALITY = 88


@dataclass(frozen=True, kw_only=True)
class PageAnswer:
    """A person's answer; `question` is the number of the one that was on the screen."""

    question: int
    action: Literal["approve", "correct", "skip", "undo"]
    label: str = ""


@contextmanager
def open_page(
    review: Review, port: int = 0, say: Callable[[Call], str] = str
) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.
    `say` gives the text of a call, for the page's hints.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    with open_server(lambda stop: _build_app(review, say, stop), port) as server:
        yield server


def _build_app(
    review: Review, say: Callable[[Call], str], on_done: Callable[[], None]
) -> "FastAPI":
    from fastapi import Response

    built = ReviewApp(review.lock, lambda: _describe_state(review, say), on_done)

    @built.app.get("/photos/{number}")
    def photo(number: int) -> Response:
        questions = review.queue.questions
        path = questions[number].path if 0 <= number < len(questions) else None
        return reply_photo(path, side=_PHOTO_SIDE)

    @built.app.post("/answer")
    def answer(given: PageAnswer) -> Response:
        return built.decide(
            lambda: given.question == review.place, lambda: _carry_out(review, given)
        )

    return built.serve_page("clew.patterns.review")


def reply_photo(path: Path | None, *, side: int) -> "Response":
    """A photo of the page, no side longer than `side`."""
    from fastapi import HTTPException, Response

    if path is None:
        raise HTTPException(404)
    try:
        content = encode_photo(path, side=side)
    except PhotoError as error:
        return Response(error.reason, status_code=410, media_type="text/plain")
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(content, media_type="image/jpeg", headers=headers)


def _carry_out(review: Review, answer: PageAnswer) -> str:
    if answer.action == "undo":
        return f"Undone: {review.undo().name}"
    if answer.action == "skip":
        review.skip()
        return "Skipped"
    decision = review.approve() if answer.action == "approve" else review.correct(answer.label)
    return review.describe(decision)


def _describe_state(review: Review, say: Callable[[Call], str]) -> dict[str, Any]:
    """Everything that the page shows. Photos are identified only by their number in the queue."""
    question = review.current
    total, counts = len(review.queue.questions), review.counts()
    again = replace(review.again_call, settings={**review.again_call.settings, "web": True})
    return {
        "place": review.place,
        "total": total,
        "question": question and _describe(question, review),
        "following": review.place + 1 if review.place + 1 < total else None,
        "counts": {name: counts[name] for name in ("approved", "corrected", "skipped")},
        "can_undo": review.place > 0,
        "new_classes": describe_new_classes(review.new_classes()),
        "moves": review.moves,
        "folder": for_terminal(review.folder),
        "command": for_terminal(say(review.next_call)),
        "again": for_terminal(say(again)),
    }


def _describe(question: Identified, review: Review) -> dict[str, Any]:
    keys = {choice.label: choice.key for choice in review.choices()}
    guesses = [
        {
            "label": label,
            "key": keys.get(label, ""),
            "probability": chance,
            "text": whole_percent(chance),
        }
        for label, chance in question.best
    ]
    return {"name": for_terminal(title_of(question)), "guesses": guesses, "keys": keys}


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
