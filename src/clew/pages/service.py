"""An API's app and how it runs: it listens at once, loads its model meanwhile, counts every
request, and ends without breaking off an answer."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, Reporter
from clew.base.settings import check_least
from clew.base.typed_json import compact_json
from clew.pages.api import (
    CONTENT_TYPE,
    ApiError,
    ApiKeys,
    Lifecycle,
    RequestMetrics,
    describe_refusal,
    failed,
    invalid,
    loading,
    of_status,
    out_of_memory,
)
from clew.pages.guard import HOST, Access, App, Limits, Message, Receive, Scope, Send, named_hosts
from clew.pages.server import listening, open_api

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response


_LOADING = "clew-loading"
# The files of an API's page: their types, and those that every page has.
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}
_SHARED = ("api.css", "api.js")
_LOOPBACK = frozenset({HOST, "localhost", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServiceReady(Event):
    """The model is loaded, and requests are answered. `served` is what, in words; the API is below
    `address`/`path`."""

    address: str
    served: str
    path: str = ""

    def __str__(self) -> str:
        return f"serving {self.served} at {self.address}{self.path}"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the service listens, and whom it lets in. Another `host` than this machine's own
    requires keys, unless everyone may enter. `allowed_hosts` are further names of the server, such
    as a proxy's."""

    host: str = HOST
    port: int = 8000
    keys: ApiKeys
    allow_anonymous: bool = False
    allowed_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.host not in _LOOPBACK and not self.keys and not self.allow_anonymous:
            raise InputError(
                "everyone who reaches this machine could use the model. Give API keys in "
                "`api_keys_file`, or use `allow_anonymous=True`.",
                setting="host",
                value=self.host,
            )

    def check_free(self) -> None:
        """Raises InputError if the port is taken, before the work of loading a model."""
        with listening(self.host, self.port):
            pass

    def access(self, metrics: RequestMetrics) -> Access:
        """Who is let in; the others are counted."""
        names = [self.host, *self.allowed_hosts]
        if self.host not in _LOOPBACK:
            names += [socket.gethostname(), socket.getfqdn()]
        return Access(
            admit=self.keys.admit,
            knows=self.keys.has_sent,
            is_own_name=named_hosts(names),
            describe=describe_refusal,
            on_refusal=lambda refusal: metrics.requests.add(
                path="refused", status=str(refusal.status)
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """An app that is ready: what it serves, in words, the path of its API, and what to call when
    the server has ended."""

    app: App
    served: str
    path: str = ""
    close: Callable[[], None] = lambda: None


class StaticPage:
    """page.html of a package's folder "static" at "/", and the files `names` below "/page/", with
    those that every page has. They need no API key."""

    def __init__(self, package: str, names: Iterable[str]) -> None:
        folder, shared = files(package).joinpath("static"), files("clew.pages")
        self._files = {
            "/": folder.joinpath("page.html"),
            **{f"/page/{name}": folder.joinpath(name) for name in names},
            **{f"/page/{name}": shared.joinpath(name) for name in _SHARED},
        }

    def read(self, path: str) -> tuple[bytes, str] | None:
        """A file by its path on the server, and its type; None if there is none."""
        found = self._files.get(path)
        if found is None:
            return None
        return found.read_bytes(), _TYPES[found.name.rpartition(".")[2]]

    def read_all(self) -> dict[str, bytes]:
        """Every file by its path on the server."""
        return {path: found.read_bytes() for path, found in self._files.items()}

    def add_to(self, app: "FastAPI") -> None:
        from fastapi import HTTPException, Response

        @app.get("/")
        @app.get("/page/{name}")
        def static(name: str = "") -> Response:
            found = self.read(f"/page/{name}" if name else "/")
            if found is None:
                raise HTTPException(404)
            return Response(found[0], media_type=found[1])


def run_service(
    address: Address,
    limits: Limits,
    lifecycle: Lifecycle,
    metrics: RequestMetrics,
    page: StaticPage,
    load: Callable[[], Loaded],
    reporter: Reporter,
) -> None:
    """Serve until a signal ends it. `load` runs in a thread of its own; what it raises ends the
    server, and is raised here; `reporter` gets ServiceReady once it has returned. Raises InputError
    if the address cannot be used."""
    front = Front(page)
    loading: Future[Loaded] = Future()

    def work() -> None:
        try:
            loaded = load()
        except BaseException as error:  # raised where the server runs
            loading.set_exception(error)
            lifecycle.begin()
            return
        front.app = loaded.app
        loading.set_result(loaded)
        reporter(ServiceReady(address=server.address, served=loaded.served, path=loaded.path))

    with open_api(
        front,
        address.access(metrics),
        host=address.host,
        port=address.port,
        limits=limits,
        ending=lifecycle,
    ) as server:
        # A model that still loads does not hold up the end of the process.
        threading.Thread(target=work, name=_LOADING, daemon=True).start()
        try:
            server.run()
        finally:
            _close(loading)


def connection_limits(max_body_bytes: int, connections: int = 512) -> Limits:
    """For many clients at a time, each of which may keep its connection open while it waits for
    an answer."""
    check_least("max_body_bytes", max_body_bytes)
    return Limits(body_bytes=max_body_bytes, connections=connections)


def is_loading() -> bool:
    """Whether the thread of a server that was stopped early still loads its model."""
    return any(thread.name == _LOADING for thread in threading.enumerate())


def _close(loading: "Future[Loaded]") -> None:
    if not loading.done():
        return
    with suppress(StoppedError):  # the signal that ended the server has also ended the loading
        loading.result().close()


Gauges = Mapping[str, tuple[str, float]]


def new_app(lifecycle: Lifecycle, metrics: RequestMetrics) -> "FastAPI":
    """An app without routes: every request is counted, every error has the API's shape."""
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Watch, metrics=metrics, lifecycle=lifecycle)
    _add_errors(app)
    return app


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> "Response":
    """JSON, escaped: texts may hold characters that UTF-8 cannot."""
    from fastapi import Response

    text = compact_json(content)
    return Response(text, status_code=status, media_type="application/json", headers=headers)


def reply_error(error: ApiError) -> "Response":
    return reply(error.body(), error.status, error.headers)


async def read_json(request: "Request") -> Any:
    """The guard has checked that a body of this type is valid JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(415, 'Send JSON, with the header "Content-Type: application/json".')
    return json.loads(await request.body() or b"null")


def add_state(
    app: "FastAPI",
    lifecycle: Lifecycle,
    metrics: RequestMetrics,
    *,
    is_running: Callable[[], bool],
    gauges: Callable[[], Gauges],
) -> None:
    """Add /healthz, /readyz and /metrics."""
    from fastapi import Response

    @app.get("/healthz")
    async def health() -> "Response":
        return reply({"status": "ok"})

    @app.get("/readyz")
    async def readiness() -> "Response":
        lifecycle.check()
        if not is_running():
            raise failed()
        return reply({"status": "ready"})

    @app.get("/metrics")
    async def show_metrics() -> "Response":
        active = {"clew_requests_active": ("HTTP requests in progress.", lifecycle.active)}
        return Response(metrics.render({**active, **gauges()}), media_type=CONTENT_TYPE)


def _add_errors(app: "FastAPI") -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(ApiError)
    async def explain(_: object, error: ApiError) -> "Response":
        return reply_error(error)

    @app.exception_handler(InputError)
    async def explain_input(_: object, error: InputError) -> "Response":
        return reply_error(ApiError(400, str(error), code="invalid_value"))

    @app.exception_handler(HTTPException)
    async def explain_status(_: object, error: HTTPException) -> "Response":
        return reply_error(of_status(error.status_code))

    @app.exception_handler(RequestValidationError)
    async def explain_value(_: object, error: RequestValidationError) -> "Response":
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return reply_error(invalid(where, f"{where}: {first['msg']}."))

    @app.exception_handler(Exception)
    async def apologize(_: object, error: Exception) -> "Response":
        from clew.base.memory import is_out_of_memory

        return reply_error(out_of_memory() if is_out_of_memory(error) else failed())


logger = logging.getLogger(__name__)

# As other servers note a client that left before its answer.
LEFT = 499
_REQUEST_ID = b"x-request-id"


class Front:
    """Answers with 503 until there is an app. The page is there before: it waits for the model."""

    def __init__(self, page: StaticPage) -> None:
        self.app: App | None = None
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from fastapi import Response

        if self.app is not None:
            await self.app(scope, receive, send)
            return
        response = reply_error(loading())
        if scope["path"] == "/healthz":
            response = reply({"status": "loading"})
        elif (found := self._page.read(scope["path"])) is not None:
            response = Response(found[0], media_type=found[1])
        await response(scope, receive, send)


class Watch:
    """Counts requests, their status and time, and gives each an ID, which the client sees too."""

    def __init__(self, app: App, metrics: RequestMetrics, lifecycle: Lifecycle) -> None:
        self._app, self._metrics, self._lifecycle = app, metrics, lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, number = time.perf_counter(), LEFT, f"req_{token_hex(12)}"

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                if all(name.lower() != _REQUEST_ID for name, _ in given):  # an upstream's own
                    given.append((_REQUEST_ID, number.encode()))
                message["headers"] = given
            await send(message)

        with self._lifecycle.request():
            try:
                await self._app(scope, receive, watch)
            except Exception:
                status = 500  # answered and logged further out
                raise
            finally:
                self._metrics.count_request(scope["path"], status)
                seconds = time.perf_counter() - started
                if scope["method"] == "POST":  # not how long it takes to say that one is ready
                    self._metrics.seconds.observe(seconds)
                logger.debug("%s: %s %s in %.3f s", number, scope["path"], status, seconds)


async def wait_until_left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)
