"""The page of `clew serve`: its files, and the JSON behind it: searches, traces, comparisons."""

import asyncio
import json
import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from clew.base.errors import InputError
from clew.base.typed_json import without_nan
from clew.hallucination.detectors.similar_answers import KnownAnswers
from clew.hallucination.live.page.stored import (
    REPORT_FILE,
    BrowsedStore,
    PageFiles,
    Search,
)
from clew.hallucination.live.page.tracer import Tracer, describe_trace
from clew.pages.api import invalid
from clew.pages.service import StaticPage
from clew.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

_SCRIPTS = ("page.js", "ask.js", "trace.js", "graph.js", "browse.js", "parts.js")
PAGE = StaticPage("clew.hallucination.live.page", ("page.css", *_SCRIPTS))
_TYPES = {"html": "text/html; charset=utf-8", "png": "image/png"}
_LAST_NUMBER = 2**53
# Traces wait here for their turn at the model, not in the threads that answer everything else.
_TRACED_AT_ONCE = 2
# A report is a page of its own with its script inside: it runs without an origin, so that it can
# reach neither the server nor anything else.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PER_PAGE = 25
_NO_STORE = "Start the server with `traces` and `scores_file` to compare answers with known ones."


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """An answer of this page, by its tokens, to be passed through the model once more."""

    question: str
    tokens: list[int]
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the routes answer from. `live` is None if no model is served."""

    files: PageFiles
    live: Tracer | None = None
    # Reports open in a tab of their own, which sends no API key: their address is the secret.
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def describe(self) -> dict[str, Any]:
        """What the page needs to know at its start."""
        store = self.files.store
        return {
            "version": __version__,
            "live": None if self.live is None else self.live.describe(),
            "store": None if store is None else _describe_store(store),
            "comparisons": len(self.files.comparisons),
        }

    def search(self, search: Search) -> dict[str, Any] | None:
        store = self.files.store
        if store is None:
            return None
        rows = store.index.find(search)
        start = search.at * _PER_PAGE
        return {
            "found": len(rows),
            "page": search.at,
            "pages": math.ceil(len(rows) / _PER_PAGE),
            "rows": [store.index.describe(int(row)) for row in rows[start : start + _PER_PAGE]],
        }

    def stored_trace(self, number: int) -> dict[str, Any] | None:
        """The trace of a stored answer, with the risk that the comparison gave it."""
        store = self.files.store
        trace = None if store is None else store.trace(number)
        if store is None or trace is None or not len(trace["tokens"]):
            return None
        return describe_trace(
            store.show(trace),
            store.known,
            _explain(store.known),
            risk=store.index.risk_of(number),
            is_stored=True,
            token_risks=None if self.live is None else self.live.score_tokens(store, trace),
        )

    def live_trace(self, wanted: TraceRequest) -> dict[str, Any] | None:
        """The trace of a new answer. Its risks came with it, so the page has them already."""
        if self.live is None:
            return None
        answer = self.live.trace(wanted.question, wanted.context, wanted.tokens)
        known, why_not = self._known_for(self.live)
        store = self.files.store
        return describe_trace(
            answer,
            known,
            why_not,
            risk=None,
            is_stored=False,
            has_links=store is not None and known is store.known,
        )

    def describe_comparisons(self) -> list[dict[str, Any]]:
        return [
            {**shown.describe(), "report": f"page/reports/{self.secret}/{number}/{REPORT_FILE}"}
            for number, shown in enumerate(self.files.comparisons)
        ]

    def read_report(self, secret: str, number: int, name: str) -> bytes | None:
        is_known = secrets.compare_digest(secret.encode(), self.secret.encode())
        if not is_known or number >= len(self.files.comparisons):
            return None
        return self.files.comparisons[number].read(name)

    def prepare(self) -> None:
        """Gather the known answers in the background, before the first trace needs them."""
        if self.files.store is not None:
            self.files.store.prepare()

    def _known_for(self, live: Tracer) -> tuple[KnownAnswers | None, str]:
        """Those of the store, or else those kept with the detector; and why there are none."""
        store = self.files.store
        if store is None:
            return live.known, _explain(live.known) if live.known else _NO_STORE
        other = live.explain_other_model(store.model)
        if other:
            return live.known, "" if live.known else other
        return store.known, _explain(store.known)


def _explain(known: KnownAnswers | None) -> str:
    """Why there are no known answers, or no probes on them; empty if there are both."""
    if known is None:
        return "The traces hold no hidden states, so answers cannot be compared with them."
    if known.probes is None:
        return (
            "The known answers have too few labels of each kind to fit probes: start the server "
            "with their `scores_file`."
        )
    return ""


def _describe_store(store: BrowsedStore) -> dict[str, Any]:
    index = store.index
    return {
        "name": store.name,
        "answers": len(index),
        "labeled": index.count_labeled(),
        "method": None if index.risk is None else index.risk.method,
        "threshold": None if index.risk is None else index.risk.threshold,
    }


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
    def search(wanted: Annotated[Search, Query()]) -> Response:
        return reply(page.search(wanted))

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
