"""Answers that exist already: `POST /score`."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError, StoppedError
from clew.hallucination.live.service.requests import (
    ScoreItem,
    out_of_time,
    read_messages,
    unusable,
)
from clew.hallucination.live.service.responses import scored_object
from clew.hallucination.live.service.service import Service
from clew.pages.api import ApiError, busy, invalid
from clew.pages.guard import Receive
from clew.pages.service import LEFT, wait_until_left

if TYPE_CHECKING:
    from clew.hallucination.live.scoring import ToScore

# Requests that may wait while another is scored.
_MAX_WAITING = 64


class _ScoreRequest:
    """A request that is scored, or waits for it. It ends early, with an error, if its client has
    left, its time is up, or the server ends: before the next batch."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.early: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()

    def end(self, error: ApiError) -> None:
        if not self.early.done():
            self.early.set_result(error)

    def check(self, _: int = 0) -> None:
        """Called in the thread that scores. Raises StoppedError."""
        if self.is_stopped.is_set():
            raise StoppedError("the request was ended.")


class Scoring:
    """Scores given answers, one request at a time: each takes a whole batch of the model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # Of its own: requests that wait here keep no thread from those that generate.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-score")
        self._waiting = 0

    async def score(self, body: Any, receive: Receive) -> Any:
        """The `clew` object of an answer, or a list of them for a list. Raises ApiError, which
        names the item that cannot be used."""
        given = body if isinstance(body, list) else [body]
        most = self._service.settings.max_items
        if len(given) > most:
            text = f"The request has {len(given):,} items: give at most {most:,}."
            raise ApiError(422, text, code="too_many_items")
        if self._waiting >= _MAX_WAITING:
            raise busy(self._waiting)
        self._waiting += 1
        try:
            found = await self._run(given, isinstance(body, list), receive)
        finally:
            self._waiting -= 1
        return found if isinstance(body, list) else found[0]

    async def _run(
        self, given: Sequence[Any], is_list: bool, receive: Receive
    ) -> list[dict[str, Any]]:
        loop, job = asyncio.get_running_loop(), _ScoreRequest()
        seconds = self._service.settings.request_seconds
        timer = loop.call_later(seconds, job.end, out_of_time(seconds))
        work = loop.run_in_executor(self._thread, self._score, given, is_list, job)
        left = asyncio.ensure_future(wait_until_left(receive))
        awaited: set[asyncio.Future[Any]] = {work, left, job.early}
        try:
            with self._service.lifecycle.running(job):
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return await work
            if job.early.done():
                raise job.early.result()
            self._service.metrics.disconnected.add()
            raise ApiError(LEFT, "The client has left.")
        finally:
            job.is_stopped.set()
            timer.cancel()
            left.cancel()
            work.cancel()

    def _score(
        self, given: Sequence[Any], is_list: bool, job: _ScoreRequest
    ) -> list[dict[str, Any]]:
        session, scored_items = self._service.session, []
        items = [
            self._read(one, f"[{place}]" if is_list else "") for place, one in enumerate(given)
        ]
        scorer = session.scorer(tokens=True)
        for start in range(0, len(items), scorer.window):
            scored_items += scorer.score_window(items[start : start + scorer.window], job.check)
        found = []
        for item, scored in zip(items, scored_items, strict=True):
            self._service.metrics.count_answer(scored.risk, "score")
            texts = [str(session.tokenizer.decode([token])) for token in item.tokens]
            found.append(scored_object(scored, session.detector.name, item.tokens, texts))
        return found

    def _read(self, given: Any, path: str) -> "ToScore":
        from clew.hallucination.live.scoring import ToScore

        dot = f"{path}." if path else ""
        found = ScoreItem.read(given, dot)
        answer = found.answer
        if answer is None:
            raise invalid(f"{dot}answer", f"{dot}answer: give the answer to score.")
        try:
            prompt, question = self._encode(found, dot)
            [tokens] = self._service.session.encoder.encode_answers([answer])
        except InputError as error:
            raise unusable(path or "question", error) from None
        return ToScore(prompt=prompt, tokens=tokens, question=question, text=answer, name=question)

    def _encode(self, found: ScoreItem, dot: str) -> tuple[list[int], str]:
        """The prompt, and the question in it."""
        question, messages = found.question, found.messages
        if (question is None) == (messages is None):
            raise invalid(f"{dot}question", f"{dot}question: give 'question' or 'messages'.")
        if question is not None:
            return self._service.session.encoder.encode(question, found.context), question
        if not messages:
            raise invalid(f"{dot}messages", f"{dot}messages: give 1 or more.")
        read = read_messages(messages, f"{dot}messages")
        return self._service.encode_chat(read, found.context, dot)[:2]
