"""What stands between the guard and the routes: an answer while the model loads, and the count of
every request. Pure ASGI: streams pass through as they are."""

import asyncio
import json
import logging
import time
from secrets import token_hex

from clew.hallucination.live.service.errors import ApiError, loading
from clew.hallucination.live.service.lifecycle import Lifecycle
from clew.hallucination.live.service.metrics import Metrics
from clew.pages.guard import App, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# As other servers note a client that left before its answer.
LEFT = 499


class Front:
    """Answers with 503 until there is an app."""

    def __init__(self) -> None:
        self.app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["path"] == "/healthz":
            await _send_json(send, 200, {"status": "loading"})
        else:
            error = loading()
            await _send_json(send, error.status, error.body(), error)


class Watch:
    """Counts requests, their status and time, and gives each an ID, which the client sees too."""

    def __init__(self, app: App, metrics: Metrics, lifecycle: Lifecycle) -> None:
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
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *(
            (name.lower().encode(), value.encode())
            for name, value in (error.headers if error else {}).items()
        ),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
