"""In front of another server that speaks OpenAI's API: requests pass to it unchanged, its answers
come back with their risk. Neither side is trusted: sizes and times are limited."""

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import httpx2 as httpx

from clew.base.errors import InputError
from clew.base.texts import bytes_text, is_sendable
from clew.hallucination.grounded.passages import split_sentences
from clew.hallucination.live.service.inspection import Clew, Inspection, Inspector, PassedAnswer
from clew.hallucination.live.service.relay import (
    DONE,
    EventLines,
    PassedAnswers,
    PassedResponse,
    add_objects,
    event,
    read_response,
    withhold,
    withhold_events,
)
from clew.hallucination.live.service.requests import out_of_time
from clew.hallucination.live.service.service import Serving
from clew.hallucination.live.service.telemetry import operation, worst
from clew.pages.api import OTHER_KEY, ApiError, of_status
from clew.pages.guard import Receive, Scope, Send
from clew.pages.service import LEFT, reply, wait_until_left

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

logger = logging.getLogger(__name__)
Check = Literal["answer", "sentence"]
_T = TypeVar("_T")
_CONNECT_SECONDS = 10.0
_DRAIN_SECONDS = 0.05
# A whole response is held while it is read.
_MOST_BYTES = 1 << 24
# Of an answer: what may wait for the end of its sentence.
_LONGEST_TAIL = 20_000
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_CHECKED: dict[str, Callable[[Mapping[str, Any]], PassedAnswers]] = {
    "chat/completions": partial(PassedAnswers, is_chat=True),
    "completions": partial(PassedAnswers, is_chat=False),
    "responses": PassedResponse,
}
_WITHHELD = ("chat/completions", "completions")
# What may pass if unchecked answers may not.
_WITHOUT_ANSWERS = ("models", "embeddings")
_OWN = ("score", "check", "feedback")
# Those that have passed a request on: one that comes back would go round for ever.
_VIA = b"x-clew-via"
_MOST_HOPS = 8
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade content-length cookie set-cookie expect".split()
)
_NOT_SENT = _HOP | {b"host", b"authorization", b"accept-encoding", b"origin", b"referer", _VIA}
_NOT_RETURNED = _HOP | {b"date", b"server", b"x-clew-risk", b"x-clew-state"}
# What the upstream sends is data: a browser runs nothing of it in the name of clew's own page.
_SANDBOX = (b"content-security-policy", b"sandbox; default-src 'none'")


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """The server behind this one: the URL of its API, and the `key` for it, which is never shown.
    Without one, `passes_keys` sends what the client sends. Streams are checked at the end, or also
    sentence by sentence; an answer waits for its risk for at most `check_seconds`."""

    url: str
    key: str | None = field(default=None, repr=False)
    passes_keys: bool = False
    check: Check = "answer"
    check_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            shown = self.url.rpartition("@")[2].partition("?")[0]
            raise InputError(
                "give the URL of the server's API, such as http://host:8000/v1, and its key with "
                "`upstream_key_env`.",
                setting="upstream",
                value=shown,
            )
        if self.key is not None and not is_sendable(self.key):
            raise InputError(
                "the key in this variable has characters that no HTTP header may have: set it "
                "again without spaces and line breaks.",
                setting="upstream_key_env",
            )
        if not 0 < self.check_seconds < 3600:
            raise InputError(
                "give a number of seconds above 0, less than 3,600.",
                setting="check_seconds",
                value=self.check_seconds,
            )

    @property
    def base(self) -> httpx.URL:
        """The URL that takes the place of /v1."""
        url = httpx.URL(self.url.rstrip("/"))
        return url if url.path.strip("/") else url.copy_with(path="/v1")


def _is_address(url: str) -> bool:
    try:
        httpx.URL(url)
        parts = urlsplit(url)
    except (httpx.InvalidURL, ValueError):
        return False
    is_plain = parts.username is None and not parts.query and not parts.fragment
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain


def add_upstream(
    app: "FastAPI",
    service: Serving,
    settings: UpstreamSettings,
    inspector: Inspector,
    prepare: Callable[[bytes], bytes] = lambda body: body,
) -> None:
    """Add the route for everything below /v1/ that no other route takes. `prepare` may change the
    requests for a chat."""
    from fastapi import Request

    inspection = Inspection(inspector, service, settings.check_seconds)
    upstream = Upstream(service, settings, inspection, prepare)

    @app.api_route("/v1/{path:path}", methods=_METHODS)
    async def relay(request: Request, path: str) -> "Response":
        service.lifecycle.check()
        if path.strip("/") in _OWN:
            raise of_status(404)  # clew's own, with another method
        return await upstream.relay(request, path)


class _Exchange:
    """A request to the upstream, and its response. It ends early, with an error, if the time is up
    or the server ends."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._deadline = seconds, self._loop.time() + seconds
        self._error: ApiError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._blocks: AsyncIterator[bytes] | None = None
        self.response: httpx.Response

    async def open(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> None:
        """Send the request, and wait for the head of the response. Raises ApiError."""
        self.response = await self._within(transport.handle_async_request(request))
        self._blocks = aiter(self.response.stream)  # type: ignore[arg-type]

    async def blocks(self) -> AsyncGenerator[bytes]:
        """The body as it comes. Raises ApiError."""
        assert self._blocks is not None
        while (block := await self._within(anext(self._blocks, None))) is not None:
            yield block

    async def collect(self) -> tuple[bytes, bool]:
        """The body, and whether that is all of it: a large one is not read to its end."""
        body = bytearray()
        async for block in self.blocks():
            body += block
            if len(body) > _MOST_BYTES:
                return bytes(body), False
        return bytes(body), True

    async def drain(self) -> None:
        """Read what follows the end of a stream, if it is there: the connection can be used again
        then."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in self.blocks():
                    pass

    def end(self, error: ApiError) -> None:
        self._error = self._error or error
        with suppress(RuntimeError):  # nothing is waited for at this moment
            if self._timeout is not None:
                self._timeout.reschedule(self._loop.time())

    async def close(self) -> None:
        if self._blocks is not None:
            await self._blocks.aclose()  # type: ignore[attr-defined]
            await self.response.aclose()

    async def _within(self, work: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                if self._error is not None:
                    raise TimeoutError
                return await work
        except TimeoutError:
            raise self._error or out_of_time(self._seconds) from None
        except httpx.TimeoutException:
            text = f"The upstream server cannot be reached within {_CONNECT_SECONDS:g} s."
            raise ApiError(504, text, code="upstream_timeout") from None
        except httpx.TransportError as error:
            logger.warning("the upstream has failed: %s: %s", type(error).__name__, error)
            text = f"The upstream server cannot be reached, or has failed ({type(error).__name__})."
            raise ApiError(502, text, code="upstream_failed") from None


class Upstream:
    """Passes requests on, and answers back with their risk."""

    def __init__(
        self,
        service: Serving,
        settings: UpstreamSettings,
        inspection: Inspection,
        prepare: Callable[[bytes], bytes],
    ) -> None:
        self._service, self._settings, self._inspection = service, settings, inspection
        self._prepare, self._name = prepare, token_hex(8).encode()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        # Without a client there are no cookies, redirects or proxies, and no log of addresses.
        self._transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)
        self._base, self._replacement = settings.base, service.settings.replacement
        self._withholds = service.settings.on_risk != "flag"

    async def relay(self, request: "Request", path: str) -> "Response":
        """The response to a request. Raises ApiError."""
        make = _CHECKED.get(path) if request.method == "POST" else None
        can_withhold = make is not None and path in _WITHHELD
        is_open = path.partition("/")[0] in _WITHOUT_ANSWERS
        if self._withholds and not can_withhold and not is_open:
            text = "This server delivers only answers that it has checked: those of "
            raise ApiError(404, f"{text}/v1/chat/completions and /v1/completions.")
        body = await request.body()
        is_chat = make is not None and path == "chat/completions"
        sent = self._make_request(request, self._prepare(body) if is_chat else body)
        exchange = _Exchange(self._service.settings.request_seconds)
        work = asyncio.ensure_future(self._answer(exchange, sent, make))
        left = asyncio.ensure_future(wait_until_left(request.receive))
        found: Response | None = None
        try:
            with self._service.lifecycle.running(exchange):
                await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                found = await work
                return found
            self._service.metrics.disconnected.add()
            return reply(None, LEFT)
        finally:
            left.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not hasattr(found, "body_iterator"):  # a stream closes it at its end
                await exchange.close()

    def _make_request(self, request: "Request", body: bytes) -> httpx.Request:
        raw, query = request.scope["raw_path"], request.scope["query_string"]
        path = raw.partition(b"?")[0].removeprefix(b"/v1")
        if path == raw or _climbs(path.decode("latin-1")):
            raise of_status(404)
        target = self._base.raw_path.rstrip(b"/") + path + (b"?" + query if query else b"")
        given = request.headers.raw
        named = {
            name.strip().lower()
            for key, value in given
            if key == b"connection"
            for name in value.split(b",")
        }
        if not self._settings.passes_keys:
            named.add(OTHER_KEY)
        headers = [(key, value) for key, value in given if key not in _NOT_SENT | named]
        headers.append((_VIA, b", ".join([*_passed_by(given, self._name), self._name])))
        # A compressed response could not be read.
        headers.append((b"accept-encoding", b"identity"))
        if self._settings.key is not None:
            headers.append((b"authorization", f"Bearer {self._settings.key}".encode()))
        elif self._settings.passes_keys:
            headers += [pair for pair in given if pair[0] == b"authorization"]
        return httpx.Request(
            request.method,
            self._base.copy_with(raw_path=target),
            headers=operation().pass_on(headers),
            content=body or None,
            extensions={"timeout": {"connect": _CONNECT_SECONDS}},
        )

    async def _answer(
        self,
        exchange: _Exchange,
        sent: httpx.Request,
        make: Callable[[Mapping[str, Any]], PassedAnswers] | None,
    ) -> "Response":
        answers = None if make is None else make(_read_fields(sent))
        operation().ask({} if answers is None else answers.asked, upstream=self._base)
        await exchange.open(self._transport, sent)
        response = exchange.response
        if response.is_redirect:
            where = response.headers.get("location", "")[:500]
            logger.warning("the upstream redirects to %r, which is not followed", where)
            text = "The upstream server redirects: its URL is another. The server's log has it."
            raise ApiError(502, text, code="upstream_redirects")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = kind == "text/event-stream"
        if answers is None or response.is_error:
            return self._stream(exchange, exchange.blocks())
        if response.headers.get("content-encoding", "identity") != "identity":
            answers.problem = "the upstream's response is compressed"
        if is_stream and not self._withholds:
            return self._stream(exchange, self._check_events(exchange, answers))
        return await self._check_whole(exchange, answers, is_stream=is_stream)

    async def _check_whole(
        self, exchange: _Exchange, answers: PassedAnswers, *, is_stream: bool
    ) -> "Response":
        body, is_complete = await exchange.collect()
        if not is_complete:
            answers.problem = f"the upstream's response has more than {bytes_text(_MOST_BYTES)}"
        content: Any = None if is_stream or not is_complete else read_response(body)
        if is_stream:
            lines = EventLines(answers)
            lines.feed(body)
            lines.end()
        else:
            answers.add(content)
        if answers.problem or not answers.finished():
            return self._pass_unchecked(exchange, answers, body, is_complete=is_complete)
        found = await self._check(answers)
        if is_stream:
            body = withhold_events(body, answers, found, self._replacement)
        elif any(clew["withheld"] for clew in found.values()):
            body = withhold(content, found, self._replacement, is_chat=answers.is_chat)
        else:
            body = add_objects(body, found)
        return self._whole(exchange, body, found)

    def _pass_unchecked(
        self, exchange: _Exchange, answers: PassedAnswers, body: bytes, *, is_complete: bool
    ) -> "Response":
        """A response that cannot be read, as it is, unless answers may have to be withheld."""
        reason = answers.problem or "the upstream's response has no answer"
        logger.warning("an answer was not checked: %s", reason)
        if self._withholds:
            text = f"The answer could not be checked ({reason}), so it is not delivered."
            raise ApiError(502, text, code="not_checked")
        found = {0: self._inspection.give_up(reason)}
        operation().add_answer(found[0])
        if is_complete:
            return self._whole(exchange, body, found)

        async def blocks() -> AsyncGenerator[bytes]:
            yield body
            async for block in exchange.blocks():
                yield block

        return self._stream(exchange, blocks(), found)

    async def _check(self, answers: PassedAnswers) -> dict[int, Clew]:
        finished, reason = answers.finished(), answers.problem
        found = (
            [self._inspection.give_up(reason) for _ in finished]
            if reason
            else await asyncio.gather(*map(self._inspection.check, finished))
        )
        operation().add_usage(answers.usage, answers.head.get("model"))
        for one, clew in zip(finished, found, strict=True):
            operation().add_answer(
                clew, response=one.id, index=one.index, text=one.text, reason=one.reason
            )
        return {one.index: clew for one, clew in zip(finished, found, strict=True)}

    async def _check_events(
        self, exchange: _Exchange, answers: PassedAnswers
    ) -> AsyncGenerator[bytes]:
        """The stream as it comes; before its end, a chunk with the risk of each answer."""
        lines, started = EventLines(answers), time.perf_counter()
        sentences = Sentences(answers, self._inspection)
        try:
            async for block in exchange.blocks():
                if started:
                    self._service.metrics.first_token.observe(time.perf_counter() - started)
                    started = 0.0
                passed = lines.feed(block)
                if self._settings.check == "sentence" and lines.is_between:
                    passed += sentences.next_chunks()
                if passed:
                    yield passed
                if lines.is_done:
                    await exchange.drain()
                    break
            yield lines.end()
        except ApiError as error:
            yield lines.separator + event(error.body()) + DONE
            return
        finally:
            sentences.cancel()
        found = await self._check(answers)
        chunks = [answers.chunk(place, clew) for place, clew in found.items()]
        yield lines.separator + b"".join(chunks) + (DONE if lines.is_done else b"")

    def _whole(self, exchange: _Exchange, body: bytes, found: Mapping[int, Clew]) -> "Response":
        from fastapi import Response

        response = Response(body, exchange.response.status_code)
        size = (b"content-length", str(len(body)).encode())
        response.raw_headers = [*self._headers(exchange, found), size]
        return response

    def _stream(
        self,
        exchange: _Exchange,
        blocks: AsyncGenerator[bytes],
        found: Mapping[int, Clew] | None = None,
    ) -> "Response":
        from starlette.responses import StreamingResponse

        lifecycle = self._service.lifecycle

        class Relayed(StreamingResponse):
            """Closes the connection to the upstream, also if the client leaves."""

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    with lifecycle.running(exchange):
                        await super().__call__(scope, receive, send)
                finally:
                    await blocks.aclose()
                    await exchange.close()

        response = Relayed(blocks, exchange.response.status_code)
        response.raw_headers = self._headers(exchange, found or {})
        return response

    def _headers(self, exchange: _Exchange, found: Mapping[int, Clew]) -> list[tuple[bytes, bytes]]:
        given = [(key.lower(), value) for key, value in exchange.response.headers.raw]
        return [
            *(pair for pair in given if pair[0] not in _NOT_RETURNED),
            *_clew_headers([*found.values()]),
            _SANDBOX,
        ]


def _passed_by(headers: Sequence[tuple[bytes, bytes]], own: bytes) -> list[bytes]:
    """The clew servers that a request has passed. Raises ApiError if it goes in a circle."""
    given = [value for key, value in headers if key == _VIA]
    names = [name.strip() for value in given for name in value.split(b",") if name.strip()]
    if own in names or len(names) >= _MOST_HOPS:
        raise ApiError(
            508,
            "This request has come back to a clew server that has passed it on: the address of the "
            "server behind clew leads to clew itself. Give that of the server that generates.",
            code="upstream_loop",
            headers={"x-should-retry": "false"},
        )
    return names


def _climbs(path: str) -> bool:
    """Whether a path may leave the folder that it is in, as a careless server reads it."""
    for _ in range(3):
        path = unquote(path)
    return bool({".", ".."} & {*path.replace("\\", "/").split("/")})


def _read_fields(sent: httpx.Request) -> dict[str, Any]:
    """Those of a request, if they are JSON: the upstream decides whether it takes another body."""
    fields = read_response(sent.content)
    return fields if isinstance(fields, dict) else {}


def _clew_headers(found: Sequence[Clew]) -> Iterator[tuple[bytes, bytes]]:
    risk, state = worst(found)
    if risk is not None:
        yield b"x-clew-risk", f"{risk:.6f}".encode()
    if state is not None:
        yield b"x-clew-state", state.encode()


class Sentences:
    """Checks the answers of a stream up to the last sentence that is complete, one check of each
    at a time, while the stream goes on."""

    def __init__(self, answers: PassedAnswers, inspection: Inspection) -> None:
        self._answers, self._inspection = answers, inspection
        self._running: dict[int, tuple[asyncio.Task[Clew], list[tuple[int, int]], str]] = {}
        self._checked: dict[int, int] = {}  # characters of each answer

    def next_chunks(self) -> bytes:
        """A chunk for every check that is done; starts the next ones."""
        found = bytearray()
        for place, (task, new, text) in list(self._running.items()):
            if task.done():
                del self._running[place]
                found += self._describe(place, task.result(), new, text)
        for one in self._answers.finished(is_final=False):
            if one.index not in self._running and self._answers.problem is None:
                self._start(one)
        return bytes(found)

    def cancel(self) -> None:
        for task, *_ in self._running.values():
            task.cancel()

    def _start(self, one: PassedAnswer) -> None:
        start = self._checked.get(one.index, 0)
        tail = one.text[start : start + _LONGEST_TAIL]
        *complete, _ = split_sentences(tail) or [(0, 0)]
        if complete:
            new = [(start + first, start + last) for first, last in complete]
            end = self._checked[one.index] = new[-1][1]
            begun = replace(one, text=one.text[:end])
            task = asyncio.create_task(self._inspection.check(begun))
            self._running[one.index] = task, new, one.text

    def _describe(self, index: int, clew: Clew, new: list[tuple[int, int]], text: str) -> bytes:
        """A detector reads the answer up to here; a reader tells the sentences apart. The risk is
        null where there is none."""
        told = {(one["start"], one["end"]): one["risk"] for one in clew.get("sentences", ())}
        sentences = [
            {"start": s, "end": e, "text": text[s:e], "risk": told.get((s, e), clew["risk"])}
            for s, e in new
        ]
        return self._answers.chunk(index, {"sentences": sentences, "tokens": []})
