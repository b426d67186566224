"""Keeps other web pages out: only requests for this machine's own name, from the page itself."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_NAMES = {"127.0.0.1", "localhost"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Refuses what did not come from the page, and tells the browser to load nothing else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        wrong = _what_is_wrong(Headers(scope=scope))
        if wrong is not None:
            await PlainTextResponse(wrong, status_code=403)(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_guarded)


def _what_is_wrong(headers: Headers) -> str | None:
    """A forwarded port may have another number: the name is what is checked."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if _name(f"//{host}") not in _OWN_NAMES:
        return "open this page by the address that clew printed"
    if origin is not None and urlsplit(origin).netloc != host:
        return "answers are taken from clew's own page only"
    return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
