"""`POST /v1/score` and `POST /v1/check`: answers that exist already get a risk from the detector,
or are read beside their sources. One request at a time: each takes whole batches of a model."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from clew.base.errors import ClewError, InputError, StoppedError
from clew.hallucination.answer_page.checked import describe_reading
from clew.hallucination.detectors.data import Promise
from clew.hallucination.detectors.promises import Traffic
from clew.hallucination.grounded import GroundedAnswer, GroundedReading, Reader
from clew.hallucination.live.features import Answer
from clew.hallucination.live.scoring import Scored
from clew.hallucination.live.service.requests import (
    CheckItem,
    Messages,
    ScoreItem,
    missing,
    out_of_time,
    read_messages,
    unusable,
)
from clew.hallucination.live.service.responses import scored_object
from clew.hallucination.live.service.service import Service, Serving
from clew.hallucination.live.service.telemetry import operation
from clew.pages.api import ApiError, busy, failed, invalid
from clew.pages.guard import Receive
from clew.pages.service import LEFT, read_json, reply, wait_until_left

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

logger = logging.getLogger(__name__)
# Requests that may wait while another is at work.
_MAX_WAITING = 64
# A client that has left stops the work before the next ones.
_READ_AT_ONCE = 8
_BETWEEN = "\n\n"


def add_existing(app: "FastAPI", service: Service, load: Callable[[], Reader]) -> "Scoring":
    """Add the routes. The reader is loaded when it is first needed."""
    from fastapi import Request

    turns, checking = Turns(service), Checking(service, load)
    scoring = Scoring(service, checking)
    add_check(app, turns, checking)

    @app.post("/score")  # its name before there was /v1
    @app.post("/v1/score")
    async def score(request: Request) -> "Response":
        return await turns.take(request, scoring.score)

    return scoring


def add_check(app: "FastAPI", turns: "Turns", checking: "Checking") -> None:
    from fastapi import Request

    @app.post("/v1/check")
    async def check(request: Request) -> "Response":
        return await turns.take(request, checking.check)


class _Turn:
    """A request that is at work, or waits for it. It ends early, with an error, if its client has
    left, its time is up, or the server ends: before the next batch."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.early: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()

    def end(self, error: ApiError) -> None:
        if not self.early.done():
            self.early.set_result(error)

    def check(self, _: int = 0) -> None:
        """Called in the thread that works. Raises StoppedError."""
        if self.is_stopped.is_set():
            raise StoppedError("the request was ended.")


# What answers items: each with the path to it for errors.
Work = Callable[[Sequence[tuple[Any, str]], _Turn], list[dict[str, Any]]]


class Turns:
    """One request after another, in a thread of its own: those that wait here keep no thread from
    those that generate."""

    def __init__(self, service: Serving) -> None:
        self._service, self._waiting = service, 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-existing")

    async def take(self, request: "Request", work: Work) -> "Response":
        """The object of an answer, or a list of them for a list. Raises ApiError, which names the
        item that cannot be used."""
        self._service.lifecycle.check()
        body = await read_json(request)
        given = body if isinstance(body, list) else [body]
        most = self._service.settings.max_items
        if len(given) > most:
            text = f"The request has {len(given):,} items: give at most {most:,}."
            raise ApiError(422, text, code="too_many_items")
        if self._waiting >= _MAX_WAITING:
            raise busy(self._waiting)
        paths = [f"[{place}]" if isinstance(body, list) else "" for place in range(len(given))]
        self._waiting += 1
        try:
            found = await self._run(list(zip(given, paths, strict=True)), request.receive, work)
        finally:
            self._waiting -= 1
        for place, clew in enumerate(found):
            for one in (clew, clew.get("check")):
                if one is not None:
                    operation().add_answer(one, index=place)
        return reply(found if isinstance(body, list) else found[0])

    async def _run(
        self, items: Sequence[tuple[Any, str]], receive: Receive, work: Work
    ) -> list[dict[str, Any]]:
        loop, turn = asyncio.get_running_loop(), _Turn()
        seconds = self._service.settings.request_seconds
        timer = loop.call_later(seconds, turn.end, out_of_time(seconds))
        done = loop.run_in_executor(self._thread, work, items, turn)
        left = asyncio.ensure_future(wait_until_left(receive))
        awaited: set[asyncio.Future[Any]] = {done, left, turn.early}
        try:
            with self._service.lifecycle.running(turn):
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return await done
            if turn.early.done():
                raise turn.early.result()
            self._service.metrics.disconnected.add()
            raise ApiError(LEFT, "The client has left.")
        finally:
            turn.is_stopped.set()
            timer.cancel()
            left.cancel()
            done.cancel()


class Checking:
    """Reads given answers beside their sources."""

    def __init__(self, service: Serving, load: Callable[[], Reader]) -> None:
        self._service, self._load = service, load

    @cached_property
    def reader(self) -> Reader:
        """Raises ApiError if it cannot be loaded."""
        try:
            return self._load()
        except (ClewError, OSError) as error:
            logger.error("the reader cannot be loaded: %s", error)
            raise failed() from None

    def check(self, given: Sequence[tuple[Any, str]], turn: _Turn) -> list[dict[str, Any]]:
        items = []
        for one, path in given:
            dot = f"{path}." if path else ""
            items.append(item := CheckItem.read(one, dot))
            for name, value in (("source", item.context), ("answer", item.answer)):
                if value is None:
                    raise missing(f"{dot}{name}")
        return self.read(items, turn)

    def read(
        self, items: Sequence[CheckItem], turn: _Turn | None = None, endpoint: str = "check"
    ) -> list[dict[str, Any]]:
        rows = [
            GroundedAnswer(answer=one.answer or "", sources=one.sources, question=one.question)
            for one in items
        ]
        found = []
        for start in range(0, len(rows), _READ_AT_ONCE):
            if turn is not None:
                turn.check()
            for reading in self.reader.read(rows[start : start + _READ_AT_ONCE]):
                self._service.metrics.count_answer(reading, endpoint)
                withheld = self._service.settings.withholds(reading.risk_level)
                promise = self._promise(reading)
                about = describe_reading(reading, self.reader.name, promise)
                found.append({**about, "withheld": withheld})
        return found

    @cached_property
    def _traffic(self) -> Traffic | None:
        promise = self.reader.settings.valid_promise
        return None if promise is None else Traffic(promise)

    def _promise(self, reading: GroundedReading) -> Promise | None:
        """None also if the latest answers are not like those that it was promised for."""
        if self._traffic is None:
            return None
        self._traffic.add(reading.state, reading.risk_level)
        return None if self._traffic.difference else self.reader.settings.promise


class Scoring:
    """Scores given answers with the detector."""

    def __init__(self, service: Service, checking: Checking) -> None:
        self._service, self._checking = service, checking
        has_probe = service.session.detector.token_probe is not None
        self._scorer = service.session.scorer(tokens=has_probe)

    def score(self, given: Sequence[tuple[Any, str]], turn: _Turn) -> list[dict[str, Any]]:
        read = [self._read(*one) for one in given]
        items, answers = [item for item, _ in read], [answer for _, answer in read]
        scored_answers = self.pass_all(answers, turn.check)
        checked = iter(self._checking.read([one for one in items if one.check], turn))
        found = []
        for (one, _), item, answer, scored in zip(
            given, items, answers, scored_answers, strict=True
        ):
            about = {**self._await_label(one, answer, scored), **self.describe(answer, scored)}
            found.append(about | ({"check": next(checked)} if item.check else {}))
        return found

    def pass_all(
        self, answers: Sequence[Answer], on_scored: Callable[[int], None] = lambda _: None
    ) -> list[Scored]:
        found: list[Scored] = []
        for start in range(0, len(answers), size := self._scorer.window):
            found += self._scorer.score_window(answers[start : start + size], on_scored)
        return found

    def describe(self, answer: Answer, scored: Scored, endpoint: str = "score") -> dict[str, Any]:
        """The clew object of an answer, which is counted."""
        session, service = self._service.session, self._service
        service.metrics.count_answer(scored.risk, endpoint)
        texts = [str(session.tokenizer.decode([token])) for token in answer.tokens]
        withheld = service.settings.withholds(scored.risk.risk_level)
        about = scored_object(scored, session.detector, answer.tokens, texts)
        return about | {"withheld": withheld, "promise": None}

    def _await_label(self, given: Any, item: Answer, scored: Scored) -> dict[str, str]:
        """The ID by which the answer gets feedback, if that is kept."""
        if self._service.feedback is None:
            return {}
        name = f"score-{token_hex(12)}"
        texts = {key: given.get(key) for key in ("context", "source", "messages")}
        texts |= {"question": item.question, "answer": item.text}
        self._service.await_label((name, 0, 1), scored.risk, scored.vector, texts)
        return {"id": name}

    def _read(self, given: Any, path: str) -> tuple[ScoreItem, Answer]:
        dot = f"{path}." if path else ""
        found = ScoreItem.read(given, dot)
        messages, answer = _split_messages(found, dot)
        try:
            prompt, question = self._encode(found, messages, dot)
            [tokens] = self._service.session.encoder.encode_answers([answer])
        except InputError as error:
            raise unusable(path or "question", error) from None
        read = Answer(prompt=prompt, tokens=tokens, question=question, text=answer, name=question)
        return found.model_copy(update={"answer": answer, "question": question or None}), read

    def _encode(
        self, found: ScoreItem, messages: Messages | None, dot: str
    ) -> tuple[list[int], str]:
        """The prompt, and the question in it; a source may have none."""
        question, source = found.question, _BETWEEN.join(found.sources) or None
        if question is None and messages is None and source is not None:
            question = ""
        if (question is None) == (messages is None):
            raise invalid(f"{dot}question", f"{dot}question: give 'question' or 'messages'.")
        if messages is not None:
            return self._service.encode_chat(messages, source, dot)[:2]
        assert question is not None
        return self._service.session.encoder.encode(question, source), question


def _split_messages(found: ScoreItem, dot: str) -> tuple[Messages | None, str]:
    """The messages before the answer, if there are any, and the answer: a field of its own, or the
    last message if that is the assistant's."""
    messages, answer = None, found.answer
    if found.messages is not None:
        messages = read_messages(found.messages, f"{dot}messages")
        if answer is None and messages and messages[-1]["role"] == "assistant":
            *messages, last = messages
            answer = last["content"]
        if not messages:
            raise invalid(f"{dot}messages", f"{dot}messages: give 1 or more.")
    if answer is None:
        raise invalid(f"{dot}answer", f"{dot}answer: give the answer to score.")
    return messages, answer
