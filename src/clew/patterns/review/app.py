"""What the review's page can ask for: itself, the open question, photos of the queue, answers."""

import json
import logging
import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Response
from pydantic import BaseModel, Field

from clew.errors import ClewError, InputError
from clew.patterns.photos.decode import PhotoError
from clew.patterns.review.guard import Guard
from clew.patterns.review.pictures import encode_photo
from clew.patterns.review.session import Review
from clew.patterns.review.state import describe_state

logger = logging.getLogger(__name__)

_PHOTO_SIDE = 1600
_FILES = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


class Answer(BaseModel):
    """What a person said; `question` is the number of the one that was on the screen."""

    question: Annotated[int, Field(ge=0)]
    action: Literal["approve", "correct", "skip", "undo"]
    label: Annotated[str, Field(max_length=500)] = ""


def build_app(review: Review, token: str, on_done: Callable[[], None]) -> FastAPI:
    """The application; everything lies below the token, and `on_done` is called at the end."""

    def check_token(given: str) -> None:
        if not secrets.compare_digest(given.encode(), token.encode()):
            raise HTTPException(404)

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Guard)
    with_token = [Depends(check_token)]

    @app.get("/{given}/state", dependencies=with_token)
    def state() -> Response:
        with review.lock:
            return _reply(review)

    @app.get("/{given}/photos/{number}", dependencies=with_token)
    def photo(number: int) -> Response:
        if not 0 <= number < len(review.queue.questions):
            raise HTTPException(404)
        try:
            content = encode_photo(review.queue.questions[number].path, side=_PHOTO_SIDE)
        except PhotoError as error:
            return Response(error.reason, status_code=410, media_type="text/plain")
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(content, media_type="image/jpeg", headers=headers)

    @app.post("/{given}/answer", dependencies=with_token)
    def answer(given_answer: Answer) -> Response:
        with review.lock:
            return _take(review, given_answer)

    @app.post("/{given}/done", dependencies=with_token)
    def done(after: BackgroundTasks) -> dict[str, bool]:
        after.add_task(on_done)
        return {"done": True}

    @app.get("/{given}/{name:path}", dependencies=with_token)
    def page(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        content = files("clew.patterns.review").joinpath(name or "page.html").read_bytes()
        return Response(content, media_type=_FILES[name])

    return app


def _take(review: Review, answer: Answer) -> Response:
    """The new state; an answer to another question than the open one changes nothing (a key that
    was pressed twice, a second tab)."""
    if answer.question != review.place:
        behind = "the page was behind: this is the photo that is open now."
        return _reply(review, status=409, error=behind)
    try:
        return _reply(review, told=_carry_out(review, answer))
    except InputError as error:
        return _reply(review, status=400, error=str(error))
    except ClewError as error:
        return _reply(review, status=507, error=str(error))
    except OSError as error:
        logger.warning("an answer could not be carried out: %s", error)
        sentence = f'"{error.filename}": {error.strerror}. Nothing was changed.'
        return _reply(review, status=507, error=sentence)


def _reply(review: Review, *, status: int = 200, **more: str) -> Response:
    """The state as it is now. Escaped: names may hold bytes that are no text."""
    content: dict[str, Any] = {**describe_state(review), **more}
    return Response(json.dumps(content), status_code=status, media_type="application/json")


def _carry_out(review: Review, answer: Answer) -> str:
    if answer.action == "undo":
        return f"Undone: {review.undo().name}"
    if answer.action == "skip":
        review.skip()
        return "Skipped"
    decision = review.approve() if answer.action == "approve" else review.correct(answer.label)
    return review.describe(decision)
