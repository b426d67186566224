"""The routes of the service: answers whole or as server-sent events, and `POST /v1/score` for
answers that exist already."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError, StoppedError
from clew.base.typed_json import compact_json
from clew.hallucination.live.delivery import LiveAnswer
from clew.hallucination.live.features import Answer
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.page.routes import Page, Tracer, add_page
from clew.hallucination.live.page.stored import PageFiles
from clew.hallucination.live.scoring import Scored
from clew.hallucination.live.service.feedback import add_feedback
from clew.hallucination.live.service.requests import (
    Asked,
    ChatRequest,
    CompletionRequest,
    Messages,
    ScoreItem,
    out_of_time,
    read_messages,
    unusable,
)
from clew.hallucination.live.service.responses import Shape, scored_object
from clew.hallucination.live.service.service import (
    Answering,
    Metrics,
    Service,
    ServiceSettings,
)
from clew.hallucination.llm.requests import Request as EngineRequest
from clew.pages.api import ApiError, Lifecycle, busy, invalid
from clew.pages.guard import Receive, Scope, Send
from clew.pages.service import LEFT, Gauges, add_state, new_app, read_json, reply, wait_until_left

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from clew.hallucination.live.session import Session


# Tokenizing takes memory in proportion to the text, several hundred bytes per character.
_TOKENIZED_AT_ONCE = 2
_DONE = "data: [DONE]\n\n"
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}
# Requests to score that may wait while another is scored.
_MAX_WAITING = 64


def build_app(
    session: "Session",
    settings: ServiceSettings,
    lifecycle: Lifecycle | None = None,
    metrics: Metrics | None = None,
    files: PageFiles | None = None,
    feedback: Feedback | None = None,
) -> "FastAPI":
    """The application around a session. `lifecycle` and `metrics` are the server's, if it has
    them before the session is there; `files` are what the page shows besides new answers;
    `feedback` needs a session with vectors."""
    ending = lifecycle or Lifecycle(settings.drain_seconds)
    ending.become_ready()
    service = Service(
        session=session,
        settings=settings,
        lifecycle=ending,
        metrics=metrics or Metrics(),
        feedback=feedback,
    )
    app = new_app(ending, service.metrics)
    _add_answers(app, service)
    add_feedback(app, service)
    _add_models(app, service)
    _add_state(app, service)
    tracer = Tracer(session, prompt=settings.prompt)
    keeps_answers = None if feedback is None else feedback.keeps_answers
    add_page(app, Page(files=files or PageFiles(), live=tracer, keeps_answers=keeps_answers))
    return app


def _add_answers(app: "FastAPI", service: Service) -> None:
    from fastapi import Request

    tokenizing, scoring = asyncio.Semaphore(_TOKENIZED_AT_ONCE), Scoring(service)

    async def answer(request: Request, read: Callable[[Any], Asked]) -> "Response":
        service.lifecycle.check()
        asked = read(await read_json(request))
        service.check_model(asked.model)
        async with tokenizing:
            work = await asyncio.to_thread(service.prepare, asked)
        answering = service.start(asked, work)
        service.metrics.prompt_tokens.add(_count_prompts(work, asked.n))
        if asked.stream:
            return _respond_with_events(service, asked, work, answering)
        return await _respond_whole(service, asked, work, answering, request)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> "Response":
        return await answer(request, ChatRequest.read)

    @app.post("/v1/completions")
    async def completions(request: Request) -> "Response":
        return await answer(request, CompletionRequest.read)

    @app.post("/score")  # its name before there was /v1
    @app.post("/v1/score")
    async def score(request: Request) -> "Response":
        service.lifecycle.check()
        return reply(await scoring.score(await read_json(request), request.receive))


def _respond_with_events(
    service: Service, asked: Asked, work: list[EngineRequest], answering: Answering
) -> "Response":
    from starlette.responses import StreamingResponse

    class EventStream(StreamingResponse):
        """Takes its requests out of the batch even if the client leaves before the first event."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                if answering.cancel():
                    service.metrics.disconnected.add()

    events = _stream(service, asked, work, answering)
    return EventStream(events, media_type="text/event-stream", headers=_STREAM_HEADERS)


async def _respond_whole(
    service: Service,
    asked: Asked,
    work: list[EngineRequest],
    answering: Answering,
    request: "Request",
) -> "Response":
    """The answers once they are finished; a client that leaves takes its requests out of the
    batch."""
    with service.lifecycle.running(answering):
        answers = asyncio.ensure_future(answering.collect())
        left = asyncio.ensure_future(wait_until_left(request.receive))
        try:
            await asyncio.wait({answers, left}, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                return reply(None, LEFT)
            found = await answers
        finally:
            if answering.cancel():
                service.metrics.disconnected.add()
            answers.cancel(), left.cancel()
    shape = Shape.of(service, asked)
    for index, (engine_request, one) in enumerate(zip(work, found, strict=True)):
        service.record(asked, engine_request, one, shape.id, index)
    counts = _count_prompts(work, asked.n), sum(len(one.tokens) for one in found)
    return reply(shape.whole([service.guard(one) for one in found], *counts))


async def _stream(
    service: Service, asked: Asked, work: Sequence[EngineRequest], answering: Answering
) -> AsyncGenerator[str]:
    """Server-sent events: a chunk per token, one at the end of each answer, [DONE]. What goes wrong
    on the way is a chunk with an error, as OpenAI's clients expect it."""
    chunks = _chunks(service, asked, work, answering)
    waiting = ""
    with service.lifecycle.running(answering):
        try:
            async for chunk in chunks:
                waiting += _event(chunk)
                if not answering.has_more:  # what has come meanwhile is sent together
                    yield waiting
                    waiting = ""
        except ApiError as error:
            yield waiting + _event(error.body())
            waiting = ""
        finally:
            await chunks.aclose()
        yield waiting + _DONE


async def _chunks(
    service: Service, asked: Asked, work: Sequence[EngineRequest], answering: Answering
) -> AsyncGenerator[dict[str, Any]]:
    shape = Shape.of(service, asked)
    no_usage = {"usage": None} if asked.includes_usage else {}
    offsets, tokens = [0] * len(work), 0
    for choice in range(len(work)):
        if first := shape.start(choice):
            yield first | no_usage
    async for choice, event in answering.events():
        if isinstance(event, LiveAnswer):
            service.record(asked, work[choice], event, shape.id, choice)
            tokens += len(event.tokens)
            shown = service.guard(event)
            if service.settings.on_risk != "flag":
                for chunk in shape.body(choice, shown):
                    yield chunk | no_usage
            yield shape.end(choice, shown) | no_usage
        else:
            yield shape.token(choice, event, offsets[choice]) | no_usage
            offsets[choice] += len(event.text)
    if asked.includes_usage:
        yield shape.usage(_count_prompts(work, asked.n), tokens)


def _count_prompts(work: Sequence[EngineRequest], n: int) -> int:
    """Every prompt is counted once, however many answers it gets."""
    return sum(len(one.prompt) for one in work[::n])


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {compact_json(chunk)}\n\n"


def _add_models(app: "FastAPI", service: Service) -> None:
    def entry() -> dict[str, Any]:
        name, started = service.model_name, service.started
        return {"id": name, "object": "model", "created": started, "owned_by": "clew"}

    @app.get("/v1/models")
    async def models() -> "Response":
        return reply({"object": "list", "data": [entry()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> "Response":
        service.check_model(name)
        return reply(entry())


def _add_state(app: "FastAPI", service: Service) -> None:
    def gauges() -> Gauges:
        load = service.session.load
        running, waiting = (load.running, load.waiting) if load else (0, 0)
        return {
            "clew_answers_running": ("Answers that are being generated.", running),
            "clew_answers_waiting": ("Answers that wait for a place in the batch.", waiting),
        }

    add_state(
        app,
        service.lifecycle,
        service.metrics,
        is_running=lambda: service.session.is_running,
        gauges=gauges,
    )


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
        has_probe = service.session.detector.token_probe is not None
        self._scorer = service.session.scorer(tokens=has_probe)
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
        for start in range(0, len(items), size := self._scorer.window):
            scored_items += self._scorer.score_window(items[start : start + size], job.check)
        found = []
        for one, item, scored in zip(given, items, scored_items, strict=True):
            self._service.metrics.count_answer(scored.risk, "score")
            texts = [str(session.tokenizer.decode([token])) for token in item.tokens]
            withheld = self._service.settings.withholds(scored.risk.risk_level)
            about = scored_object(scored, session.detector, item.tokens, texts)
            about |= {"withheld": withheld, "promise": None}
            found.append({**self._await_label(one, item, scored), **about})
        return found

    def _await_label(self, given: Any, item: Answer, scored: Scored) -> dict[str, str]:
        """The ID by which the answer gets feedback, if that is kept."""
        if self._service.feedback is None:
            return {}
        name = f"score-{token_hex(12)}"
        texts = {key: given.get(key) for key in ("context", "source", "messages")}
        texts |= {"question": item.question, "answer": item.text}
        self._service.await_label((name, 0, 1), scored.risk, scored.vector, texts)
        return {"id": name}

    def _read(self, given: Any, path: str) -> Answer:
        dot = f"{path}." if path else ""
        found = ScoreItem.read(given, dot)
        messages, answer = _split_messages(found, dot)
        try:
            prompt, question = self._encode(found, messages, dot)
            [tokens] = self._service.session.encoder.encode_answers([answer])
        except InputError as error:
            raise unusable(path or "question", error) from None
        return Answer(prompt=prompt, tokens=tokens, question=question, text=answer, name=question)

    def _encode(
        self, found: ScoreItem, messages: Messages | None, dot: str
    ) -> tuple[list[int], str]:
        """The prompt, and the question in it; a source may have none."""
        question, source = found.question, found.context or found.source
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
