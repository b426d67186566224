"""`POST /v1/feedback`: what people say about answers of this server."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.service.requests import FeedbackRequest
from clew.pages.api import ApiError, busy, invalid
from clew.pages.service import read_json, reply

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

    from clew.hallucination.live.service.service import Service

logger = logging.getLogger(__name__)
# Labels that may wait while another is written.
_MAX_WAITING = 64
_NOT_KEPT = (
    "This server keeps no texts, so it takes no 'corrected_answer': omit it, or start the server "
    "with `keep_answers`."
)


def add_feedback(app: "FastAPI", service: "Service") -> None:
    """Add the route. Labels are written one at a time, in a thread of their own: one that waits for
    the disk keeps no answer waiting."""
    from fastapi import Request

    thread, waiting = ThreadPoolExecutor(1, thread_name_prefix="clew-feedback"), 0

    @app.post("/v1/feedback")
    async def label(request: Request) -> "Response":
        nonlocal waiting
        service.lifecycle.check()
        given = FeedbackRequest.read(await read_json(request))
        feedback = _check(service.feedback, given)
        if waiting >= _MAX_WAITING:
            raise busy(waiting)
        waiting += 1
        try:
            loop = asyncio.get_running_loop()
            kept = await loop.run_in_executor(thread, _keep, feedback, given)
        finally:
            waiting -= 1
        service.metrics.feedback.add(label=str(given.label))
        return reply(kept)


def _check(feedback: Feedback | None, given: FeedbackRequest) -> Feedback:
    if feedback is None:
        raise ApiError(
            404,
            "This server keeps no feedback: its detector is not in a folder of its machine. Start "
            "it with `feedback_file`.",
        )
    if given.corrected_answer is not None and not feedback.keeps_answers:
        raise invalid("corrected_answer", _NOT_KEPT, "answers_not_kept")
    return feedback


def _keep(feedback: Feedback, given: FeedbackRequest) -> dict[str, Any]:
    """Raises ApiError."""
    assert given.id is not None and given.label is not None
    try:
        index = feedback.add(given.id, given.index, given.label, given.corrected_answer)
    except KeyError:
        raise _unknown(feedback, given) from None
    except InputError as error:
        text = str(error)
        raise invalid("id", f"{text[:1].upper()}{text[1:]}") from None
    except QueueFullError as error:
        text = f"{error.waiting:,} labels are kept already, and this server keeps no more."
        raise ApiError(429, text, code="queue_full") from None
    except (ClewError, OSError) as error:
        logger.error("feedback could not be saved: %s", error)
        text = "The feedback could not be saved. The server's log says why."
        raise ApiError(507, text, code="not_saved") from None
    said = {"label": given.label, "corrected_answer": given.corrected_answer}
    return {"id": given.id, "index": index, **said, "labeled_answers": len(feedback)}


def _unknown(feedback: Feedback, given: FeedbackRequest) -> ApiError:
    which = f" with index {given.index}" if given.index is not None else ""
    return ApiError(
        404,
        f"No answer '{given.id}'{which} waits for feedback: the ID is not of this server, or has "
        f"expired. The last {feedback.recent.most:,} answers wait, until the server ends.",
        param="id",
        code="answer_not_found",
    )
