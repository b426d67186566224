"""What every API that clew serves has: errors in OpenAI's shape, keys, its phases from loading to
the end, and metrics."""

import hmac
import json
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Protocol

from clew.base.errors import InputError
from clew.base.texts import is_sendable
from clew.pages.guard import RefusedError, Scope, find_header
from clew.storage.reading import read_bounded
from clew.version import __version__

# Codes for errors that no code of OpenAI's describes better.
_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
}
# OpenAI's types of errors.
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer other than 200. `param` is the field of the request that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code or _CODES.get(status)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, usual)
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A field whose value cannot be used."""
    return ApiError(400, message, param=param, code=code)


def busy(waiting: int) -> ApiError:
    """The queue is full."""
    return ApiError(
        429,
        f"The server is busy: {waiting:,} requests are waiting. Try again in a moment.",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def _later(message: str, code: str, seconds: int) -> ApiError:
    return ApiError(503, message, code=code, headers={"Retry-After": str(seconds)})


loading = partial(_later, "The model is still loading. Try again in a moment.", "loading", 2)
out_of_memory = partial(
    _later,
    "Memory ran out while this request was answered. Try again later, or with a smaller request.",
    "out_of_memory",
    5,
)
failed = partial(
    ApiError, 500, "The server has failed to answer. Its log says why.", code="internal_error"
)


def shutting_down() -> ApiError:
    error = _later("The server is shutting down.", "shutting_down", 5)
    error.headers["Connection"] = "close"
    return error


def describe_refusal(refusal: RefusedError) -> tuple[bytes, bytes]:
    """What the guard refuses: its content type and its body."""
    error = ApiError(refusal.status, f"{refusal.reason[:1].upper()}{refusal.reason[1:]}.")
    return b"application/json", json.dumps(error.body()).encode()


def of_status(status: int) -> ApiError:
    """An error of the router: no such path, or another method."""
    return ApiError(status, f"{HTTPStatus(status).phrase}.")


_MAX_BYTES = 1 << 20
_LEAST_CHARACTERS = 8
# What load balancers and browsers ask for, and they have no key: the page itself holds no data.
_OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
_OPEN_FOLDER = "/page/"
# Where some clients send a key, such as LiteLLM to a guardrail.
OTHER_KEY = b"x-api-key"


class ApiKeys:
    """The keys that a client may send. Only their hashes are kept."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def knows(self, key: str) -> bool:
        """All keys are compared, whichever it is."""
        given = sha256(key.encode()).digest()
        return sum(hmac.compare_digest(given, known) for known in self._hashes) > 0

    def has_sent(self, scope: Scope) -> bool:
        """Whether one of these is in the head of a request."""
        for value in find_header(scope["headers"], b"authorization"):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and self.knows(key.strip()):
                return True
        return any(map(self.knows, find_header(scope["headers"], OTHER_KEY)))

    def admit(self, scope: Scope) -> str:
        """For the server's guard: raises RefusedError if the request needs a key and has none of
        these."""
        path: str = scope["path"]
        is_open = path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)
        if not self or is_open or self.has_sent(scope):
            return ""
        raise RefusedError(
            401,
            'give a valid API key in the header "Authorization: Bearer KEY"',
            headers=[(b"www-authenticate", b"Bearer")],
        )


def read_keys(file: Path | None, variable: str | None) -> ApiKeys:
    """The keys in a file, one per line ("#" starts a comment), and in the environment variable of
    that name, separated by commas or white space. Raises InputError; no key is ever in its text."""
    found = _split(
        read_variable(variable, "api_keys_env").replace(",", "\n").replace(" ", "\n"),
        "api_keys_env",
    )
    if file is not None:
        try:
            text = read_bounded(file, _MAX_BYTES).decode()
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})."
            raise InputError(reason, setting="api_keys_file", value=file) from None
        except ValueError:
            reason = "it is not a text file with one key per line."
            raise InputError(reason, setting="api_keys_file", value=file) from None
        found += _split(text, "api_keys_file", file)
        if not found:
            raise InputError("it contains no key.", setting="api_keys_file", value=file)
    return ApiKeys(found)


def read_variable(name: str | None, setting: str) -> str:
    """An environment variable that is named contains a key: a server that is meant to require keys
    does not run without. "" without a name."""
    value = os.environ.get(name, "") if name is not None else ""
    if name is not None and not value.strip():
        raise InputError(
            "this environment variable contains no API key.", setting=setting, value=name
        )
    return value


def _split(text: str, setting: str, value: object = None) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    for number, key in enumerate(keys, 1):
        if len(key) < _LEAST_CHARACTERS or not is_sendable(key):
            raise InputError(
                f"key {number} is not usable: a key has at least {_LEAST_CHARACTERS} printable "
                f"ASCII characters and no spaces.",
                setting=setting,
                value=value,
            )
    return keys


Phase = Literal["loading", "ready", "draining"]
# After the time to drain: for the last words of every stream.
_LAST_WORDS_SECONDS = 2.0


class RunningWork(Protocol):
    """What the end of the server cuts short."""

    def end(self, error: "ApiError") -> None: ...


class Lifecycle:
    """The state of the server, and its end: after `begin`, no new request is answered, those that
    run get `drain_seconds`, and those that still run then are ended with an error."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._deadline: float | None = None
        self._is_ready = False
        self._active = 0
        self._running: set[RunningWork] = set()

    @property
    def phase(self) -> Phase:
        if self._deadline is not None:
            return "draining"
        return "ready" if self._is_ready else "loading"

    @property
    def active(self) -> int:
        """Requests that are being answered."""
        return self._active

    def become_ready(self) -> None:
        self._is_ready = True

    def check(self) -> None:
        """Raises ApiError unless new work is accepted."""
        if self.phase == "draining":
            raise shutting_down()
        if self.phase == "loading":
            raise loading()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @contextmanager
    def running(self, work: RunningWork) -> Iterator[None]:
        """While something is at work that the end of the server cuts short."""
        self._running.add(work)
        try:
            yield
        finally:
            self._running.discard(work)

    def begin(self) -> None:
        """Begin to end; may be called from a signal handler."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._drain_seconds

    def is_over(self) -> bool:
        """Called by the server's own loop: also ends what has run out of time."""
        if self._deadline is None:
            return False
        late = time.monotonic() - self._deadline
        if late >= 0:
            for work in self._running:
                work.end(shutting_down())
        return self._active == 0 or late > _LAST_WORDS_SECONDS


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
