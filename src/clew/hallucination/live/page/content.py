"""What the page's routes answer: searches, traces, comparisons."""

import math
import secrets
from dataclasses import dataclass, field
from typing import Any

from clew.hallucination.detectors.similar_answers import KnownAnswers
from clew.hallucination.live.page.comparisons import REPORT_FILE
from clew.hallucination.live.page.files import BrowsedStore, PageFiles
from clew.hallucination.live.page.index import Search
from clew.hallucination.live.page.tracer import Tracer
from clew.hallucination.live.page.view import describe_trace
from clew.version import __version__

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

    def search(self, search: Search, page: int) -> dict[str, Any] | None:
        store = self.files.store
        if store is None:
            return None
        rows = store.index.find(search)
        start = page * _PER_PAGE
        return {
            "found": len(rows),
            "page": page,
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
