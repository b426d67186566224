"""What stands between the guard and the routes: an answer while the model loads, and the count of
every request. Pure ASGI: streams pass through as they are."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from secrets import token_hex

from clew.pages.api.errors import ApiError, loading
from clew.pages.api.lifecycle import Lifecycle
from clew.pages.api.metrics import RequestMetrics
from clew.pages.api.static import StaticPage
from clew.pages.guard import App, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# As other servers note a client that left before its answer.
LEFT = 499


class Front:
    """Answers with 503 until there is an app. The page is there before: it waits for the model."""

    def __init__(self, page: StaticPage) -> None:
        self.app: App | None = None
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["path"] == "/healthz":
            await _send_json(send, 200, {"status": "loading"})
        elif (found := self._page.read(scope["path"])) is not None:
            await _send(send, 200, *found)
        else:
            error = loading()
            await _send_json(send, error.status, error.body(), error)


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
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", number.encode()),
                ]
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


async def _send_json(
    send: Send, status: int, content: object, error: ApiError | None = None
) -> None:
    headers = error.headers if error else {}
    await _send(send, status, json.dumps(content).encode(), "application/json", headers)


async def _send(
    send: Send, status: int, body: bytes, kind: str, more: Mapping[str, str] | None = None
) -> None:
    given = {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}
    headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
