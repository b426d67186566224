"""What a collector of OpenTelemetry receives: spans and events over the real protocol."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from clew.base.progress import Note, ignore_event
from clew.hallucination.live.service.telemetry import Telemetry, open_telemetry
from clew.hallucination.live.service.upstream import UpstreamSettings
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import DIALOGUE, QUESTION, serving
from tests.hallucination.live.service.upstreams import ANSWER, Handler, running

pytestmark = pytest.mark.slow

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="requires clew[otel]")

CHAT = "v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass
class Collected:
    """What the collector was sent, decoded."""

    spans: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    content: bytes = b""

    @property
    def span(self) -> Any:
        [span] = self.spans
        return span


def attributes(one: Any) -> dict[str, Any]:
    def value(given: Any) -> Any:
        kind = given.WhichOneof("value")
        found = getattr(given, kind)
        return [value(inner) for inner in found.values] if kind == "array_value" else found

    return {pair.key: value(pair.value) for pair in one.attributes}


class Collector(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        import gzip

        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        found: Collected = self.server.seen[0]  # type: ignore[attr-defined]
        found.content += body
        if self.path == "/v1/traces":
            for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                found.resources.append(attributes(one.resource))
                found.spans += [span for scope in one.scope_spans for span in scope.spans]
        elif self.path == "/v1/logs":
            for one in ExportLogsServiceRequest.FromString(body).resource_logs:
                found.events += [event for scope in one.scope_logs for event in scope.log_records]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collected, Telemetry]]:
    """A collector, and what sends to it; complete once that is closed."""
    with running(Collector) as server:
        server.seen.append(Collected())  # type: ignore[arg-type]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url.removesuffix("/v1"))
        telemetry = open_telemetry(ignore_event)
        assert telemetry is not None
        try:
            yield server.seen[0], telemetry  # type: ignore[misc]
        finally:
            for end in telemetry.shut_down:  # all is sent, however long it takes
                end()


def test_an_answer_is_a_span_with_its_evaluation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"messages": QUESTION, "max_tokens": 4, "temperature": 0.5}
    with (
        collecting(monkeypatch) as (collected, telemetry),
        serving(session, telemetry=telemetry) as served,
    ):
        content = served.fetch(CHAT, asked, traceparent=TRACEPARENT)[1]
    span, found = collected.span, attributes(collected.span)
    assert span.name == "chat tiny" and span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == PARENT and span.kind == span.SPAN_KIND_SERVER
    clew = content["clew"]
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "tiny"
    assert found["gen_ai.request.max_tokens"] == 4 and found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.usage.input_tokens"] == content["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == content["usage"]["completion_tokens"]
    assert found["gen_ai.response.id"] == content["id"]
    assert found["gen_ai.response.finish_reasons"] == [content["choices"][0]["finish_reason"]]
    assert found["clew.state"] == clew["state"]
    [event] = collected.events
    told = attributes(event)
    assert event.event_name == "gen_ai.evaluation.result" and event.span_id == span.span_id
    assert told["gen_ai.evaluation.name"] == "hallucination_risk"
    assert told.get("gen_ai.evaluation.score.value") == clew["risk"]
    assert told["gen_ai.evaluation.score.label"] == (clew["risk_level"] or clew["state"])
    assert told["gen_ai.response.id"] == content["id"] and told["clew.detector"] == clew["detector"]
    [resource] = collected.resources
    assert resource["service.name"] == "clew"


def test_every_choice_of_a_stream_has_its_evaluation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        collecting(monkeypatch) as (collected, telemetry),
        serving(session, telemetry=telemetry) as served,
    ):
        served.fetch(CHAT, {"messages": QUESTION, "n": 2, "stream": True, "max_tokens": 4})
    found = attributes(collected.span)
    assert [attributes(one)["clew.choice"] for one in collected.events] == [0, 1]
    assert len(found["gen_ai.response.finish_reasons"]) == 2
    assert found["gen_ai.usage.output_tokens"] > 0 and found["http.response.status_code"] == 200


def test_given_answers_have_evaluations(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    item = {"question": "What is the capital of France?", "answer": "Paris is the capital."}
    with (
        collecting(monkeypatch) as (collected, telemetry),
        serving(session, telemetry=telemetry) as served,
    ):
        scored = served.fetch("v1/score", [item, {**item, "answer": "Rome."}])[1]
        checked = served.fetch("v1/check", {**item, "source": "Paris is a city."})[1]
    assert [span.name for span in collected.spans] == ["evaluate", "evaluate"]
    told = [attributes(one) for one in collected.events]
    risks = [one.get("gen_ai.evaluation.score.value") for one in told]
    assert risks == [one["risk"] for one in [*scored, checked]]
    assert [one["clew.detector"] for one in told] == [one["detector"] for one in [*scored, checked]]


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_continues_the_trace(
    session: Session, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    asked = {"model": "any", "messages": QUESTION, "stream": stream, "seed": 2**70}
    with (
        running(Handler) as upstream,
        collecting(monkeypatch) as (collected, telemetry),
    ):
        behind = UpstreamSettings(url=upstream.url, check_seconds=60.0)
        with serving(session, upstream=behind, telemetry=telemetry) as served:
            served.fetch(CHAT, asked, traceparent=TRACEPARENT, tracestate="a=b")
    [(_, _, headers, _)] = upstream.seen
    span, found = collected.span, attributes(collected.span)
    assert headers["Traceparent"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert headers["Tracestate"] == "a=b" and span.kind == span.SPAN_KIND_CLIENT
    assert f"http://{found['server.address']}:{found['server.port']}/v1" == upstream.url
    assert found["gen_ai.response.id"] == "chatcmpl-1"
    assert found["gen_ai.response.model"] == "caf\u00e9 \u00fc"
    assert found["gen_ai.usage.input_tokens"] == 7 and found["gen_ai.usage.output_tokens"] == 12
    [event] = collected.events
    assert attributes(event)["gen_ai.evaluation.score.value"] == found["clew.risk"]


def test_without_telemetry_a_trace_passes_to_the_upstream_unchanged(session: Session) -> None:
    with running(Handler) as upstream:
        behind = UpstreamSettings(url=upstream.url, check_seconds=60.0)
        with serving(session, upstream=behind) as served:
            served.fetch(CHAT, {"messages": QUESTION}, traceparent=TRACEPARENT)
    assert upstream.seen[0][2]["Traceparent"] == TRACEPARENT


def test_texts_are_recorded_only_if_the_standard_variable_asks(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"messages": [{"role": "user", "content": "Where is Zagreb?"}]}
    contents = []
    for place in ("", "SPAN_AND_EVENT"):
        monkeypatch.setenv(CAPTURE, place)
        with running(Handler) as upstream, collecting(monkeypatch) as (collected, telemetry):
            behind = UpstreamSettings(url=upstream.url, check_seconds=60.0)
            with serving(session, upstream=behind, telemetry=telemetry) as served:
                served.fetch(CHAT, asked)
        contents.append(collected.content)
        said = attributes(collected.span)
    assert b"Zagreb" not in contents[0] and ANSWER.encode() not in contents[0]
    assert json.loads(said["gen_ai.input.messages"])[0]["parts"][0]["content"] == "Where is Zagreb?"
    [message] = json.loads(said["gen_ai.output.messages"])
    assert message["parts"][0]["content"] == ANSWER and message["finish_reason"] == "stop"
    names = [one.event_name for one in collected.events]
    assert names == ["gen_ai.evaluation.result", "gen_ai.client.inference.operation.details"]


def test_errors_have_a_type(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        collecting(monkeypatch) as (collected, telemetry),
        serving(session, telemetry=telemetry) as served,
    ):
        assert served.fetch(CHAT, {"model": "another", "messages": QUESTION})[0] == 404
    found = attributes(collected.span)
    assert found["error.type"] == "404" and found["gen_ai.request.model"] == "another"
    assert not collected.events


@pytest.mark.parametrize("is_listening", [False, True])
def test_answers_flow_without_a_collector(
    session: Session, monkeypatch: pytest.MonkeyPatch, is_listening: bool
) -> None:
    """It is away, or takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not is_listening:
            silent.close()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        telemetry = open_telemetry(ignore_event)
        assert telemetry is not None
        with serving(session, telemetry=telemetry) as served:
            asked = {"messages": DIALOGUE, "max_tokens": 2}
            states = [served.fetch(CHAT, asked)[1]["clew"]["state"] for _ in range(3)]
        telemetry.close()
    assert len(states) == 3


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
    ],
)
def test_nothing_is_sent_unless_the_variables_ask(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    notes: list[Any] = []
    assert open_telemetry(notes.append) is None and not notes


def test_a_protocol_that_is_not_spoken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    notes: list[Any] = []
    assert open_telemetry(notes.append) is None
    [note] = notes
    assert isinstance(note, Note) and "OTEL_EXPORTER_OTLP_PROTOCOL is grpc" in str(note)
    assert "http/protobuf" in str(note)
