"""What an API counts, in Prometheus' text format. Nothing of a request's content is in it."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clew.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

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


class RequestMetrics:
    """What every API counts. `paths` are those that have a label of their own: others would be a
    client's to invent. A subclass adds counters and histograms as attributes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self.requests = Counter("clew_requests_total", "Requests by path and status.")
        self.disconnected = Counter(
            "clew_disconnected_total", "Requests whose client left before the end."
        )
        self.seconds = Histogram(
            "clew_request_seconds", "Time to the whole response of a POST, in seconds.", SECONDS
        )

    def count_request(self, path: str, status: int) -> None:
        self.requests.add(path=path if path in self._paths else "other", status=str(status))

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
            if isinstance(metric, Counter | Histogram):
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
