"""The routes of the service: answers whole or as server-sent events, and what tells its state."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from clew.base.typed_json import compact_json
from clew.hallucination.detectors import Detector
from clew.hallucination.grounded import Reader, load_reader
from clew.hallucination.live.delivery import LiveAnswer
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.page.routes import Page, Tracer, add_page
from clew.hallucination.live.page.stored import PageFiles
from clew.hallucination.live.service.existing import Checking, Turns, add_check, add_existing
from clew.hallucination.live.service.feedback import add_feedback
from clew.hallucination.live.service.guardrail import add_guardrail
from clew.hallucination.live.service.inspection import DetectorInspector, ReaderInspector
from clew.hallucination.live.service.requests import Asked, ChatRequest, CompletionRequest
from clew.hallucination.live.service.responses import Shape
from clew.hallucination.live.service.service import (
    Answering,
    Metrics,
    Service,
    ServiceSettings,
    Serving,
)
from clew.hallucination.live.service.telemetry import Telemetry, Watched, operation
from clew.hallucination.live.service.upstream import UpstreamSettings, add_upstream
from clew.hallucination.live.vllm import EngineInspector, VllmServer
from clew.hallucination.llm.requests import Request as EngineRequest
from clew.pages.api import ApiError, Lifecycle
from clew.pages.guard import Receive, Scope, Send
from clew.pages.service import LEFT, Gauges, add_state, new_app, read_json, reply, wait_until_left

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from clew.hallucination.live.session import Session


# Tokenizing takes memory in proportion to the text, several hundred bytes per character.
_TOKENIZED_AT_ONCE = 2
_DONE = "data: [DONE]\n\n"
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}


def build_app(
    session: "Session",
    settings: ServiceSettings,
    lifecycle: Lifecycle | None = None,
    metrics: Metrics | None = None,
    files: PageFiles | None = None,
    feedback: Feedback | None = None,
    reader: Callable[[], Reader] = load_reader,
    upstream: UpstreamSettings | None = None,
    telemetry: Telemetry | None = None,
) -> "FastAPI":
    """The application around a session. `lifecycle` and `metrics` are the server's, if it has
    them before the session is there; `files` are what the page shows besides new answers;
    `feedback` needs a session with vectors. `reader` is called when an answer is first checked.
    Behind it may be an `upstream`, which then generates the answers; `telemetry` watches them."""
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
    inspector = DetectorInspector(service, add_existing(app, service, reader))
    add_guardrail(app, service, inspector)
    add_feedback(app, service)
    if upstream is None:
        _add_answers(app, service)
        _add_models(app, service)
    else:
        add_upstream(app, service, upstream, inspector)
    _add_state(app, service)
    page = Page(
        files=files or PageFiles(),
        live=Tracer(session, prompt=settings.prompt),
        keeps_answers=None if feedback is None else feedback.keeps_answers,
        has_upstream=upstream is not None,
    )
    return _complete(app, page, telemetry)


def build_reader_app(
    reader: Reader,
    settings: ServiceSettings,
    lifecycle: Lifecycle,
    metrics: Metrics,
    files: PageFiles | None = None,
    upstream: UpstreamSettings | None = None,
    telemetry: Telemetry | None = None,
) -> "FastAPI":
    """The application around a reader alone: answers are only checked, given ones and those of an
    `upstream`."""
    lifecycle.become_ready()
    service = Serving(settings=settings, lifecycle=lifecycle, metrics=metrics)
    app = new_app(lifecycle, metrics)
    checking = Checking(service, lambda: reader)
    add_check(app, Turns(service), checking)
    inspector = ReaderInspector(checking)
    add_guardrail(app, service, inspector)
    if upstream is not None:
        add_upstream(app, service, upstream, inspector)
    add_state(app, lifecycle, metrics, is_running=lambda: True, gauges=dict)
    page = Page(files=files or PageFiles(), has_upstream=upstream is not None)
    return _complete(app, page, telemetry)


def _complete(app: "FastAPI", page: Page, telemetry: Telemetry | None) -> "FastAPI":
    """The app with the page; its requests are watched."""
    add_page(app, page)
    if telemetry is not None:
        app.add_middleware(Watched, telemetry=telemetry, has_upstream=page.has_upstream)
    return app


def build_vllm_app(
    server: VllmServer,
    detector: Detector,
    settings: ServiceSettings,
    lifecycle: Lifecycle,
    metrics: Metrics,
    files: PageFiles,
    upstream: UpstreamSettings,
    telemetry: Telemetry | None = None,
) -> "FastAPI":
    """The application in front of vLLM with a detector in it."""
    lifecycle.become_ready()
    service = Serving(settings=settings, lifecycle=lifecycle, metrics=metrics)
    app = new_app(lifecycle, metrics)
    inspector = EngineInspector(server.url, detector, service)
    add_upstream(app, service, upstream, inspector, inspector.prepare)
    add_state(app, lifecycle, metrics, is_running=lambda: server.is_running, gauges=dict)
    return _complete(app, Page(files=files, has_upstream=True), telemetry)


def _add_answers(app: "FastAPI", service: Service) -> None:
    from fastapi import Request

    tokenizing, compiling = (asyncio.Semaphore(_TOKENIZED_AT_ONCE) for _ in range(2))

    async def answer(request: Request, read: Callable[[Any], Asked]) -> "Response":
        service.lifecycle.check()
        asked = read(body := await read_json(request))
        operation().ask(body, service.model_name)
        service.check_model(asked.model)
        if isinstance(asked, ChatRequest) and asked.answer_schema is not None:
            async with compiling:  # a hostile schema does not hold up those without one
                await asyncio.to_thread(service.compile, asked)
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
        if (reader := service.call_reader(asked, engine_request)) is not None:
            _ = [reader.feed(token) for token in one.tokens], reader.finish()
            one = found[index] = service.with_calls(one, reader.said)
        service.record(asked, engine_request, one, shape.id, index)
    counts = _count_prompts(work, asked.n), sum(len(one.tokens) for one in found)
    content = shape.whole([service.guard(one) for one in found], *counts)
    operation().add_usage(content["usage"], shape.model)
    return reply(content)


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
    readers = [service.call_reader(asked, one) for one in work]
    for choice in range(len(work)):
        if first := shape.start(choice):
            yield first | no_usage
    async for choice, event in answering.events():
        if (reader := readers[choice]) is not None:
            calls = len(reader.said.calls)
            said = reader.finish() if isinstance(event, LiveAnswer) else reader.feed(event)
            if said:
                yield shape.said(choice, said, reader.take_tokens(), calls) | no_usage
        if isinstance(event, LiveAnswer):
            event = event if reader is None else service.with_calls(event, reader.said)
            service.record(asked, work[choice], event, shape.id, choice)
            tokens += len(event.tokens)
            shown = service.guard(event)
            if service.settings.on_risk != "flag":
                for chunk in shape.body(choice, shown):
                    yield chunk | no_usage
            yield shape.end(choice, shown) | no_usage
        elif reader is None:
            yield shape.token(choice, event, offsets[choice]) | no_usage
            offsets[choice] += len(event.text)
    last = shape.usage(_count_prompts(work, asked.n), tokens)
    operation().add_usage(last["usage"], shape.model)
    if asked.includes_usage:
        yield last


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
