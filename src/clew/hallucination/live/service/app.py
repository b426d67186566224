"""The routes of the service."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clew.hallucination.live.page.content import Page
from clew.hallucination.live.page.files import PageFiles
from clew.hallucination.live.page.routes import add_page
from clew.hallucination.live.page.tracer import Tracer
from clew.hallucination.live.service.answering import Answering, Work, collect
from clew.hallucination.live.service.asked import Asked, read_chat, read_completion
from clew.hallucination.live.service.metrics import Metrics
from clew.hallucination.live.service.scoring import Scoring
from clew.hallucination.live.service.service import Service
from clew.hallucination.live.service.settings import ServiceSettings
from clew.hallucination.live.service.shapes import model_entry
from clew.hallucination.live.service.streaming import endpoint, prompt_tokens, stream
from clew.pages.api import Lifecycle
from clew.pages.guard import Receive, Scope, Send
from clew.pages.service import LEFT, Gauges, add_state, new_app, read_json, reply, wait_until_left

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from clew.hallucination.live.session import Session

# Tokenizing takes memory in proportion to the text, several hundred bytes per character.
_TOKENIZED_AT_ONCE = 2
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}


def build_app(
    session: "Session",
    settings: ServiceSettings,
    lifecycle: Lifecycle | None = None,
    metrics: Metrics | None = None,
    files: PageFiles | None = None,
) -> "FastAPI":
    """The application around a session. `lifecycle` and `metrics` are the server's, if it has
    them before the session is there; `files` are what the page shows besides new answers."""
    ending = lifecycle or Lifecycle(settings.drain_seconds)
    ending.become_ready()
    service = Service(
        session=session, settings=settings, lifecycle=ending, metrics=metrics or Metrics()
    )
    app = new_app(ending, service.metrics)
    _add_answers(app, service)
    _add_models(app, service)
    _add_state(app, service)
    tracer = Tracer(session, prompt=settings.prompt)
    add_page(app, Page(files=files or PageFiles(), live=tracer))
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
        service.metrics.prompt_tokens.add(prompt_tokens(work, asked.n))
        if asked.is_stream:
            return _stream(service, asked, work, answering)
        return await _whole(service, asked, work, answering, request)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> "Response":
        return await answer(request, read_chat)

    @app.post("/v1/completions")
    async def completions(request: Request) -> "Response":
        return await answer(request, read_completion)

    @app.post("/score")
    async def score(request: Request) -> "Response":
        service.lifecycle.check()
        return reply(await scoring.score(await read_json(request), request.receive))


def _stream(service: Service, asked: Asked, work: list[Work], answering: Answering) -> "Response":
    from starlette.responses import StreamingResponse

    class EventStream(StreamingResponse):
        """Takes its requests out of the batch even if the client leaves before the first event."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                if answering.cancel():
                    service.metrics.disconnected.add()

    events = stream(service, asked, work, answering)
    return EventStream(events, media_type="text/event-stream", headers=_STREAM_HEADERS)


async def _whole(
    service: Service,
    asked: Asked,
    work: list[Work],
    answering: Answering,
    request: "Request",
) -> "Response":
    """The answers once they are finished; a client that leaves takes its requests out of the
    batch."""
    with service.lifecycle.running(answering):
        answers = asyncio.ensure_future(collect(answering, len(work)))
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
    for place, one in enumerate(found):
        service.record(endpoint(asked), work[place], one)
    return reply(service.shape(asked).whole(found, prompt_tokens(work, asked.n)))


def _add_models(app: "FastAPI", service: Service) -> None:
    def entry() -> dict[str, Any]:
        return model_entry(service.model_name, service.started)

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
