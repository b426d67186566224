"""What the service counts, in Prometheus' text format: requests, tokens, latencies, risks. Nothing
of a prompt or an answer is in it."""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clew.version import __version__

if TYPE_CHECKING:
    from clew.hallucination.detectors.risk import Risk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RISKS = tuple(place / 10 for place in range(1, 11))
# Labels of paths that do not exist would be a client's to invent.
_PATHS = frozenset(
    {
        *("/", "/v1/chat/completions", "/v1/completions", "/v1/models", "/score"),
        *("/healthz", "/readyz", "/metrics"),
    }
)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number per set of labels that only grows."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(labels.items())
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def lines(self) -> Iterator[str]:
        yield from _header(self.name, "counter", self.text)
        with self._lock:
            values = dict(self._values) or {(): 0.0}
        for labels, value in sorted(values.items()):
            yield f"{self.name}{_labels(labels)} {_number(value)}"


class Histogram:
    """How many values lie at or below each bound."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self._bounds = name, text, tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def lines(self) -> Iterator[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        yield from _header(self.name, "histogram", self.text)
        below = 0
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{le="{bound}"}} {below}'
        yield f"{self.name}_sum {total!r}"
        yield f"{self.name}_count {below}"


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.requests = Counter("clew_requests_total", "Requests by path and status.")
        self.prompt_tokens = Counter("clew_prompt_tokens_total", "Tokens of prompts.")
        self.tokens = Counter("clew_generated_tokens_total", "Tokens of answers.")
        self.scored = Counter(
            "clew_answers_total", "Answers by endpoint, state of the check and verdict."
        )
        self.disconnected = Counter(
            "clew_disconnected_total", "Requests whose client left before the end."
        )
        self.seconds = Histogram(
            "clew_request_seconds", "Time to the whole response of a POST, in seconds.", _SECONDS
        )
        self.first_token = Histogram(
            "clew_first_token_seconds", "Time to the first token, in seconds.", _SECONDS
        )
        self.risks = Histogram("clew_risk", "Risk of answers that have one.", _RISKS)

    def count_answer(self, risk: "Risk", endpoint: str) -> None:
        verdict = risk.verdict or "none"
        self.scored.add(endpoint=endpoint, state=risk.state, verdict=verdict)
        if risk.risk is not None:
            self.risks.observe(risk.risk)

    def count_request(self, path: str, status: int) -> None:
        self.requests.add(path=path if path in _PATHS else "other", status=str(status))

    def count_refusal(self, status: int) -> None:
        """A request that was refused before anything of it was read."""
        self.requests.add(path="refused", status=str(status))

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All metrics; `gauges` are numbers of this moment: the name, what it is, and its value."""
        parts = [
            *_header("clew_info", "gauge", "The version of clew."),
            f'clew_info{{version="{__version__}"}} 1',
        ]
        for metric in vars(self).values():
            parts += metric.lines()
        for name, (text, value) in gauges.items():
            parts += [*_header(name, "gauge", text), f"{name} {_number(value)}"]
        return "\n".join(parts) + "\n"


def _header(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    """All digits of it, as counters may be large."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
