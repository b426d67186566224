"""The routes of the page: its files, and the JSON behind it."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

from clew.base.errors import InputError
from clew.base.typed_json import without_nan
from clew.hallucination.live.page.content import Page, TraceRequest
from clew.hallucination.live.page.index import Label, Order, Outcome, Search
from clew.pages.api import invalid
from clew.pages.service import StaticPage

if TYPE_CHECKING:
    from fastapi import FastAPI

_SCRIPTS = ("page.js", "ask.js", "trace.js", "graph.js", "browse.js", "parts.js")
PAGE = StaticPage("clew.hallucination.live.page", ("page.css", *_SCRIPTS))
_TYPES = {"html": "text/html; charset=utf-8", "png": "image/png"}
_LAST_PAGE = 10_000_000
_LAST_NUMBER = 2**53
_LONGEST_SEARCH = 200
# Traces wait here for their turn at the model, not in the threads that answer everything else.
_TRACED_AT_ONCE = 2
# A report is a page of its own with its script inside: it runs without an origin, so that it can
# reach neither the server nor anything else.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def add_page(app: "FastAPI", page: Page) -> None:
    """Add the page at "/", its files and reports below "page/" (which need no API key), and its
    JSON below "clew/"."""
    from fastapi import HTTPException, Path, Query, Response

    def reply(content: Any) -> Response:
        """Escaped: texts of answers may hold characters that UTF-8 cannot."""
        if content is None:
            raise HTTPException(404)
        text = json.dumps(without_nan(content), allow_nan=False, separators=(",", ":"))
        return Response(text, media_type="application/json")

    PAGE.add_to(app)

    @app.get("/page/reports/{secret}/{number}/{name:path}")
    def report(secret: str, number: Annotated[int, Path(ge=0)], name: str) -> Response:
        content = page.read_report(secret, number, name)
        if content is None:
            raise HTTPException(404)
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    @app.get("/clew/page")
    def describe() -> Response:
        page.prepare()
        return reply(page.describe())

    @app.get("/clew/answers")
    def search(
        text: Annotated[str, Query(max_length=_LONGEST_SEARCH)] = "",
        label: Label = "any",
        outcome: Outcome = "any",
        least_risk: Annotated[float, Query(ge=0, le=1)] = 0.0,
        most_risk: Annotated[float, Query(ge=0, le=1)] = 1.0,
        order: Order = "number",
        at: Annotated[int, Query(ge=0, le=_LAST_PAGE)] = 0,
    ) -> Response:
        wanted = Search(
            text=text,
            label=label,
            outcome=outcome,
            least_risk=least_risk,
            most_risk=most_risk,
            order=order,
        )
        return reply(page.search(wanted, at))

    @app.get("/clew/answers/{number}")
    def stored(number: Annotated[int, Path(ge=0, le=_LAST_NUMBER)]) -> Response:
        return reply(page.stored_trace(number))

    tracing = asyncio.Semaphore(_TRACED_AT_ONCE)

    @app.post("/clew/trace")
    async def trace(wanted: TraceRequest) -> Response:
        try:
            async with tracing:
                return reply(await asyncio.to_thread(page.live_trace, wanted))
        except InputError as error:
            raise invalid("tokens", str(error)) from None

    @app.get("/clew/comparisons")
    def comparisons() -> Response:
        return reply(page.describe_comparisons())
