"""OpenTelemetry: a span per request whose answers are checked, and the event
`gen_ai.evaluation.result` per answer, with the names of the conventions for generative AI. The SDK
sends them from threads of its own: answers never wait for a collector."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew.base.progress import Note, Reporter
from clew.base.typed_json import compact_json
from clew.hallucination.live.service.requests import GUARDRAIL_PATH
from clew.pages.guard import App, Message, Receive, Scope, Send
from clew.version import __version__

if TYPE_CHECKING:
    from httpx2 import URL
    from opentelemetry._logs import Logger
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Span, Tracer

Headers = list[tuple[bytes, bytes]]
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    **dict.fromkeys(("/v1/score", "/score", "/v1/check", GUARDRAIL_PATH), "evaluate"),
}
_RESULT = "gen_ai.evaluation.result"
_DETAILS = "gen_ai.client.inference.operation.details"
_EVALUATION = "hallucination_risk"
# The fields of OpenAI's requests that have an attribute.
_REQUEST = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n": "choice.count",
    "seed": "seed",
    **{name: name for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")},
}
_USAGE = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
# Where texts go, by the standard variable. OpenTelemetry's older value is "true".
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PLACES = {
    **dict.fromkeys(("true", "span_only"), ("span",)),
    "event_only": ("event",),
    "span_and_event": ("span", "event"),
}
_SIGNALS = ("TRACES", "LOGS")
_PROTOCOL = "http/protobuf"
_CLOSE_SECONDS = 5.0
_LONGEST = 500


class Operation:
    """What happens to a request, for those who watch. This one keeps nothing: no one does."""

    def ask(
        self, fields: Mapping[str, Any], model: str | None = None, upstream: "URL | None" = None
    ) -> None:
        """The request has these fields of OpenAI's API; `model` is used if it names none."""

    def add_answer(
        self,
        clew: Mapping[str, Any],
        *,
        response: str = "",
        index: int = 0,
        text: str = "",
        reason: str | None = None,
    ) -> None:
        """An answer was checked: the choice `index` of a response, and why it ended."""

    def add_usage(self, usage: Any, model: Any = None) -> None:
        """The response counts its tokens, and names its model."""

    def pass_on(self, headers: Headers) -> Headers:
        """The headers of a request to another server, which continues the trace."""
        return headers


def worst(found: Sequence[Mapping[str, Any]]) -> tuple[float | None, str | None]:
    """Of several answers, the highest risk, and the state of one that was not checked, if any."""
    risks = [clew["risk"] for clew in found if clew["risk"] is not None]
    states = [clew["state"] for clew in found]
    unchecked = (one for one in states if one != "checked")
    return max(risks, default=None), next(unchecked, "checked" if states else None)


_NONE = Operation()
_CURRENT: ContextVar[Operation] = ContextVar("operation", default=_NONE)


def operation() -> Operation:
    """That of the request which is being answered."""
    return _CURRENT.get()


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Makes spans and events. `content` says where texts are recorded ("span", "event");
    `shut_down` ends what was started for it."""

    tracer: "Tracer"
    logger: "Logger"
    content: tuple[str, ...] = ()
    shut_down: tuple[Callable[[], object], ...] = ()

    @contextmanager
    def watch(self, name: str, path: str, headers: Headers, *, calls: bool) -> Iterator["_Traced"]:
        """The operation of a request, which calls another server if `calls`."""
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
        with self.tracer.start_as_current_span(
            name,
            context=propagate.extract(carrier),
            kind=SpanKind.CLIENT if calls else SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": name,
                "gen_ai.provider.name": "openai" if calls else "clew",
                "url.path": path,
            },
        ) as span:
            traced = _Traced(self, span, name)
            token = _CURRENT.set(traced)
            try:
                yield traced
            finally:
                _CURRENT.reset(token)
                traced.end()

    def close(self) -> None:
        """Send what waits. A collector that is slow or away delays the end only for a moment."""
        threads = [threading.Thread(target=end, daemon=True) for end in self.shut_down]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CLOSE_SECONDS / len(threads))


class _Traced(Operation):
    """An operation that has a span."""

    def __init__(self, telemetry: Telemetry, span: "Span", name: str) -> None:
        from opentelemetry.trace import set_span_in_context

        self._telemetry, self._span, self._name = telemetry, span, name
        self._context = set_span_in_context(span)
        self._clews: list[Mapping[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._answers: dict[int, tuple[str, str | None]] = {}
        self.status = 0

    def ask(
        self, fields: Mapping[str, Any], model: str | None = None, upstream: "URL | None" = None
    ) -> None:
        named = fields.get("model")
        model = named if isinstance(named, str) else model
        if model:
            self._span.update_name(_encodable(f"{self._name} {model}"))
            self._set("gen_ai.request.model", model)
        for name, attribute in _REQUEST.items():
            if _is_number(fields.get(name)):
                self._set(f"gen_ai.request.{attribute}", fields[name])
        if upstream is not None:
            self._set("server.address", upstream.host)
            self._set("server.port", upstream.port or (443 if upstream.scheme == "https" else 80))
        if self._telemetry.content:
            self._messages = _describe_messages(fields)

    def add_answer(
        self,
        clew: Mapping[str, Any],
        *,
        response: str = "",
        index: int = 0,
        text: str = "",
        reason: str | None = None,
    ) -> None:
        self._clews.append(clew)
        if response or reason:
            self._answers[index] = text, reason
            self._set("gen_ai.response.id", response)
        # What follows a colon may quote the request.
        why = str(clew.get("reason") or "")
        why = why if self._telemetry.content else why.partition(": ")[0]
        self._emit(
            _RESULT,
            {
                "gen_ai.evaluation.name": _EVALUATION,
                "gen_ai.evaluation.score.value": clew["risk"],
                "gen_ai.evaluation.score.label": clew["risk_level"] or clew["state"],
                "gen_ai.evaluation.explanation": why,
                "gen_ai.response.id": response,
                "clew.detector": clew.get("detector"),
                "clew.choice": index,
                "clew.withheld": clew.get("withheld"),
            },
        )

    def add_usage(self, usage: Any, model: Any = None) -> None:
        if isinstance(model, str):
            self._set("gen_ai.response.model", model)
        for name, attribute in _USAGE.items():
            if isinstance(usage, dict) and _is_number(usage.get(name)):
                self._set(f"gen_ai.usage.{attribute}", usage[name])

    def pass_on(self, headers: Headers) -> Headers:
        from opentelemetry import propagate

        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=self._context)
        own = [(key.lower().encode(), value.encode()) for key, value in carrier.items()]
        names = {key for key, _ in own}
        return [pair for pair in headers if pair[0] not in names] + own

    def end(self) -> None:
        """Called once, after the response."""
        from opentelemetry.trace import StatusCode

        risk, state = worst(self._clews)
        if risk is not None:
            self._set("clew.risk", risk)
        if state is not None:
            self._set("clew.state", state)
        reasons = [_encodable(reason or "") for _, (_, reason) in sorted(self._answers.items())]
        if reasons:
            self._set("gen_ai.response.finish_reasons", reasons)
        if self.status:
            self._set("http.response.status_code", self.status)
        if self.status >= 400:
            self._set("error.type", str(self.status))
        if self.status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._record_content()

    def _record_content(self) -> None:
        if not self._telemetry.content or not self._messages:
            return
        said = [
            {**_message("assistant", text), "finish_reason": reason or ""}
            for _, (text, reason) in sorted(self._answers.items())
        ]
        found = {
            "gen_ai.input.messages": compact_json(self._messages),
            "gen_ai.output.messages": compact_json(said),
        }
        if "span" in self._telemetry.content:
            self._span.set_attributes(found)
        if "event" in self._telemetry.content:
            self._emit(_DETAILS, {"gen_ai.operation.name": self._name}, **found)

    def _set(self, name: str, value: Any) -> None:
        self._span.set_attribute(name, _encodable(value))

    def _emit(self, name: str, attributes: Mapping[str, Any], **content: str) -> None:
        from opentelemetry._logs import SeverityNumber

        found = {key: _encodable(value) for key, value in attributes.items()} | content
        self._telemetry.logger.emit(
            event_name=name,
            context=self._context,
            severity_number=SeverityNumber.INFO,
            attributes={key: value for key, value in found.items() if value not in (None, "")},
        )


def _is_number(value: Any) -> bool:
    """A number that fits: one value that cannot be encoded would cost a whole batch of spans."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -(2**63) <= value < 2**63


def _encodable(value: Any) -> Any:
    """A text as UTF-8 can hold it; one that a client or an upstream chose may have any length."""
    if not isinstance(value, str):
        return value
    return value[:_LONGEST].encode(errors="replace").decode()


def _describe_messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages or the prompts of a request, as the conventions write them."""
    given = fields.get("messages")
    if isinstance(given, list):
        return [_message(m.get("role"), m.get("content")) for m in given if isinstance(m, dict)]
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if all(isinstance(one, int) for one in prompts):
        return []  # tokens, or nothing
    return [_message("user", one) for one in prompts]


def _message(role: Any, content: Any) -> dict[str, Any]:
    """Of parts that are no text, only their type."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    described = [
        {"type": str(part.get("type")), **({"content": part["text"]} if part.get("text") else {})}
        for part in parts
        if isinstance(part, dict)
    ]
    return {"role": str(role), "parts": described}


class Watched:
    """An app whose requests are watched. `has_upstream` if another server generates the answers."""

    def __init__(self, app: App, telemetry: Telemetry, has_upstream: bool) -> None:
        self._app, self._telemetry, self._has_upstream = app, telemetry, has_upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _OPERATIONS.get(scope["path"]) if scope["method"] == "POST" else None
        if name is None:
            return await self._app(scope, receive, send)
        calls = self._has_upstream and name != "evaluate"
        with self._telemetry.watch(name, scope["path"], scope["headers"], calls=calls) as traced:

            async def watch(message: Message) -> None:
                if message["type"] == "http.response.start":
                    traced.status = message["status"]
                await send(message)

            return await self._app(scope, receive, watch)


def open_telemetry(report: Reporter) -> Telemetry | None:
    """What OpenTelemetry's own variables ask for, or the process has set up already; None if
    neither does."""
    signals = [signal for signal in _SIGNALS if _is_sent(signal, report)]
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        if isinstance(trace.get_tracer_provider(), TracerProvider):
            return _use_global()
        return _start(signals, report) if signals else None
    except ImportError as error:
        if signals:
            what = f"OpenTelemetry is configured, but {error.name} is not installed"
            report(Note(f"{what}: nothing is sent. Install it with pip install 'clew[otel]'"))
        return None


def _is_sent(signal: str, report: Reporter) -> bool:
    """Whether the variables ask for a signal."""
    chosen, endpoint = _variable(f"OTEL_{signal}_EXPORTER"), "OTEL_EXPORTER_OTLP{}_ENDPOINT"
    named = _variable(endpoint.format("")) or _variable(endpoint.format(f"_{signal}"))
    if _variable("OTEL_SDK_DISABLED") == "true" or not (chosen or named):
        return False
    protocols = [f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]
    for name in protocols:
        if (protocol := _variable(name) or _PROTOCOL) != _PROTOCOL:
            what = f"{name} is {protocol}, which clew does not speak: no {signal.lower()} are sent"
            report(Note(f"{what}. Use {_PROTOCOL}, usually at port 4318"))
            return False
    return "otlp" in (chosen or "otlp").split(",")


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def _use_global() -> Telemetry:
    """The providers that opentelemetry-instrument, or the program around, has set up."""
    from opentelemetry import trace
    from opentelemetry._logs import get_logger

    return Telemetry(
        tracer=trace.get_tracer("clew", __version__),
        logger=get_logger("clew", __version__),
        content=_PLACES.get(_variable(_CONTENT), ()),
    )


def _start(signals: list[str], report: Reporter) -> Telemetry:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = _describe_service()
    # They end with the server: what they register to run at exit may wait for long.
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
    if "TRACES" in signals:
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if "LOGS" in signals:
        logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    report(Note(f"OpenTelemetry: {' and '.join(signals).lower()} are sent"))
    return Telemetry(
        tracer=traces.get_tracer("clew", __version__),
        logger=logs.get_logger("clew", __version__),
        content=_PLACES.get(_variable(_CONTENT), ()),
        shut_down=(traces.shutdown, logs.shutdown),
    )


def _describe_service() -> "Resource":
    from opentelemetry.sdk.resources import Resource

    named = _variable("OTEL_SERVICE_NAME") or "service.name=" in _variable(
        "OTEL_RESOURCE_ATTRIBUTES"
    )
    name = {} if named else {"service.name": "clew"}
    return Resource.create({**name, "service.version": __version__})
