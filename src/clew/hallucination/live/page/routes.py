"""The page of `clew serve`: its files, and the JSON behind it: searches, comparisons, and traces. A
new answer passes through the model once more, with all that is drawn recorded this time."""

import asyncio
import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch

from clew.base.errors import InputError
from clew.base.typed_json import without_nan
from clew.hallucination.answer_page.picture import (
    ShownAnswer,
    accepted_text,
    describe_probabilities,
    graph_data,
    read_answer,
    views_of,
)
from clew.hallucination.detectors.similar_answers import KnownAnswers, read_known
from clew.hallucination.live.page.stored import REPORT_FILE, BrowsedStore, PageFiles, Search
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.recording import Recording
from clew.hallucination.traces import Trace
from clew.hallucination.traces.compact import reduced_columns
from clew.hallucination.traces.token_texts import split_texts, visible_text
from clew.pages.api import invalid
from clew.pages.service import StaticPage
from clew.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

    from clew.hallucination.live.session import Session


_SCRIPTS = ("page.js", "ask.js", "check.js", "trace.js", "graph.js", "browse.js", "parts.js")
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
_COLUMNS = frozenset({"last_hidden", "edges", "lookback"})
# The attention of a layer is held for all pairs of tokens.
_MOST_TOKENS = 2048
_MOST_CHARACTERS = 100_000
_NEAREST = 8


class Tracer:
    """Traces answers with the model of a session, between the passes of its engine. `prompt` says
    how the service puts a question to the model; `known` are the answers kept with the detector."""

    def __init__(
        self, session: "Session", *, prompt: Literal["detector", "messages"] = "detector"
    ) -> None:
        """Raises StoreError if the file of the known answers is damaged."""
        self.session, self._prompt = session, prompt
        folder = session.detector.folder
        self.known = None if folder is None else read_known(folder)

    def describe(self) -> dict[str, Any]:
        """The names of the model and the detector, for the head of the page."""
        detector = self.session.detector
        model = str(detector.model.get("id") or "")
        name = PurePath(model).name or model
        return {"model": name, "detector": detector.title, "warning": detector.warning}

    def explain_other_model(self, model: dict[str, Any]) -> str:
        """Why traces of `model` cannot be compared with new answers; empty if they can."""
        own = self.session.detector.model
        if all(model.get(key) == own.get(key) for key in ("id", "revision", "layers", "dim")):
            return ""
        return (
            "The known answers are of another model, so new answers cannot be compared with them."
        )

    def trace(self, question: str, context: str | None, tokens: Sequence[int]) -> ShownAnswer:
        """Pass an answer once more. Raises InputError if it is empty, too long, or not of this
        model's tokens."""
        answer = list(tokens)
        self._check_tokens(answer)
        if len(question) + len(context or "") > _MOST_CHARACTERS:
            raise InputError(f"only questions of up to {_MOST_CHARACTERS:,} characters are traced.")
        prompt = self._encode(question, context)
        _check_length(len(prompt) + len(answer))
        passed = self.session.call(lambda: self._decoder.record([prompt], [answer]))
        [(logprobs, entropies)], reduced = passed
        shape, length = self._decoder.shape, len(prompt) + len(answer)
        arrays = reduced_columns(reduced, [length])
        sizes: dict[str, tuple[int, ...]] = {"last_hidden": (shape.layers, shape.dim)}
        if attending := shape.attention_layers:
            sizes["lookback"] = (attending, shape.heads)
            edges = (attending, length, shape.edges_per_token)
            sizes |= {"edge_source": edges, "edge_weight": edges}
        texts = split_texts(self._decode, [*prompt, *answer])
        trace = {
            "global_example_id": -1,
            "question_id": "",
            "question": question,
            "context": context,
            "answer": "".join(texts[len(prompt) :]),
            "accepted_answers": None,
            "category": None,
            "stop_reason": None,
            "prompt_length": len(prompt),
            "token_logprobs": logprobs,
            "token_entropies": entropies,
            "with_attention": shape.with_attention,
            **{name: arrays[name].reshape(size) for name, size in sizes.items()},
        }
        return read_answer(trace, texts, None, None)

    def score_tokens(self, store: BrowsedStore, trace: Trace) -> list[float] | None:
        """The risk of every token of a stored answer by the detector's token probe. None without
        one, or if the store's states are in another basis than the detector's."""
        probe = self.session.detector.token_probe
        names = ("nodes", "token_logprobs", "token_entropies")
        if probe is None or any(trace.get(name) is None for name in names):
            return None
        if self.explain_other_model(store.model) or not self._has_basis(store):
            return None
        device = self.session.loaded.device
        nodes = trace["nodes"][list(probe.layers), trace["prompt_length"] :].swapaxes(0, 1)
        arrays = (nodes, *(trace[name] for name in names[1:]))
        tensors = [torch.from_numpy(np.array(one, np.float32)).to(device) for one in arrays]
        return [round(risk, 4) for risk in probe.score(*tensors).tolist()]

    def _has_basis(self, store: BrowsedStore) -> bool:
        ours, theirs = self.session.detector.basis, store.basis
        if ours is None or theirs is None or ours.components.shape != theirs.components.shape:
            return False
        pairs = ((ours.mean, theirs.mean), (ours.components, theirs.components))
        return all(torch.allclose(a.float().cpu(), b.float(), atol=1e-3) for a, b in pairs)

    def _encode(self, question: str, context: str | None) -> list[int]:
        if self._prompt == "messages":
            return self.session.encoder.encode_messages([{"role": "user", "content": question}])
        return self.session.encoder.encode(question, context)

    def _check_tokens(self, answer: list[int]) -> None:
        if not answer:
            raise InputError("the answer is empty: there is nothing to trace.")
        _check_length(len(answer))
        vocabulary = len(self.session.tokenizer)
        if not all(0 <= token < vocabulary for token in answer):
            raise InputError(f"the answer has a token beyond the model's {vocabulary:,}.")

    def _decode(self, tokens: list[int]) -> str:
        return str(self.session.tokenizer.decode(tokens, skip_special_tokens=False))

    @cached_property
    def _decoder(self) -> Decoder:
        """Used only while nothing else uses the model."""
        shape = self.session.detector.shape
        recording = Recording(shape=shape, basis=None, columns=_COLUMNS)
        return Decoder(self.session.loaded, recording)


def _check_length(tokens: int) -> None:
    if tokens > _MOST_TOKENS:
        raise InputError(
            f"prompt and answer have {tokens:,} tokens, but only traces of up to "
            f"{_MOST_TOKENS:,} are drawn."
        )


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """An answer of this page, by its tokens, to be passed through the model once more."""

    question: str
    tokens: list[int]
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the routes answer from. `live` is None if no model is served, `keeps_answers` if no
    feedback is kept. `has_upstream`: another server generates the answers."""

    files: PageFiles
    live: Tracer | None = None
    keeps_answers: bool | None = None
    has_upstream: bool = False
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
            "upstream": self.has_upstream,
            "feedback": None if self.keeps_answers is None else {"texts": self.keeps_answers},
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


def describe_trace(
    answer: ShownAnswer,
    known: KnownAnswers | None,
    why_unknown: str,
    *,
    risk: dict[str, Any] | None,
    is_stored: bool,
    has_links: bool = True,
    token_risks: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Everything that the page shows of an answer. `risk` is as in the API, None without one;
    `why_unknown` says why there are no known answers, or no probes on them. `has_links`: the known
    answers can be opened in the explorer."""
    number = answer.number if is_stored else None
    return {
        "number": number,
        "question_id": answer.question_id if is_stored else None,
        "question": answer.question,
        "context": answer.context,
        "answer": answer.answer,
        "accepted": accepted_text(answer) if answer.accepted else None,
        "category": answer.category,
        "ended": answer.stop_reason,
        "label": answer.kind,
        "score": answer.score,
        "clew": risk,
        "tokens": _describe_tokens(answer, token_risks),
        "summary": describe_probabilities(answer),
        "layers": answer.layers,
        "graphs": _describe_graphs(answer),
        "course": _describe_course(answer, known, number),
        "near": _describe_near(answer, known, number),
        "has_links": has_links,
        "known": why_unknown,
        "notes": list(answer.notes),
    }


def _describe_tokens(answer: ShownAnswer, risks: Sequence[float] | None) -> list[dict[str, Any]]:
    texts = answer.answer_texts
    own: Sequence[float | None] = risks or [None] * len(texts)
    logprobs = [None] * len(texts) if answer.logprobs is None else answer.logprobs.tolist()
    entropies = [None] * len(texts) if answer.entropies is None else answer.entropies.tolist()
    return [
        {"token": text, "shown": visible_text(text), "logprob": p, "entropy": h, "risk": risk}
        for text, p, h, risk in zip(texts, logprobs, entropies, own, strict=True)
    ]


def _describe_graphs(answer: ShownAnswer) -> list[dict[str, Any]]:
    """With the prompt folded and, if that hides anything, with the whole prompt."""
    if answer.graph is None:
        return []
    return [graph_data(answer, view) for view in views_of(answer)]


def _describe_course(
    answer: ShownAnswer, known: KnownAnswers | None, number: int | None
) -> dict[str, Any] | None:
    """The risk at every layer from the probes on the known answers."""
    if known is None or known.probes is None or answer.states is None:
        return None
    risks = known.risks(answer.states, number)
    if risks is None:
        return None
    return {
        "risks": [round(risk, 4) for risk in risks],
        "aurocs": [round(value, 3) for value in known.probes.aurocs],
        "base_rate": round(known.base_rate, 4),
        "answers": len(known.texts),
    }


def _describe_near(
    answer: ShownAnswer, known: KnownAnswers | None, number: int | None
) -> dict[str, Any] | None:
    if known is None or answer.states is None:
        return None
    found, texts = known.nearest(answer.states, number, _NEAREST), known.texts
    items = [
        {
            "number": int(texts.numbers[one.row]),
            "question": texts.questions[one.row],
            "answer": texts.answers[one.row],
            "label": texts.label_at(one.row),
            "similarity": one.similarity,
        }
        for one in found
    ]
    labels = [item["label"] for item in items if item["label"] is not None]
    return {
        "layer": known.layer,
        "answers": len(texts),
        "hallucinated": labels.count("hallucinated"),
        "labeled": len(labels),
        "items": items,
    }
