"""What is asked of the engine, what it delivers, and what a caller holds of a request meanwhile."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from clew.base.errors import ClewError, InputError
from clew.hallucination.llm.prompts import Cut

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from clew.hallucination.llm.grammar import Grammar
    from clew.hallucination.llm.recording import RowCopy


Ended = Literal["end", "stop", "line", "sentence", "repetition", "length", "canceled"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. `temperature=0` is greedy: the most likely token after the
    penalties; the other settings are then ignored. With a `seed`, or with `numbers` from 0 to 1 to
    draw the tokens by, the same request gives the same answer whatever else is in the batch."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    numbers: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "give 0 (greedy) or more.", self.temperature >= 0)
        _check("top_p", self.top_p, "give a number from 0 to 1.", 0 <= self.top_p <= 1)
        _check("top_k", self.top_k, "give 1 or more.", self.top_k is None or self.top_k >= 1)
        for setting in ("frequency_penalty", "presence_penalty"):
            _check(setting, value := getattr(self, setting), "give a number.", isfinite(value))


def _check(setting: str, value: float | None, advice: str, is_right: bool) -> None:
    if not is_right or value == inf:
        raise InputError(advice, setting=setting, value=value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One answer to generate after the `prompt` (token ids). It ends at the model's end token, at
    one of the texts in `stop` (excluded from the answer), where `cut` says, or after
    `max_new_tokens`. `top_logprobs`: how many alternatives to report per token. Only a request
    that `is_scored` is recorded. One that `ignores_end` ends after `max_new_tokens`. `question` is
    the text of the question, for detectors that compare answers. With a `grammar`, the answer is
    of that form."""

    prompt: list[int]
    max_new_tokens: int
    question: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    cut: Cut = "none"
    top_logprobs: int = 0
    is_scored: bool = True
    ignores_end: bool = False
    grammar: "Grammar | None" = None

    def __post_init__(self) -> None:
        least = self.max_new_tokens
        _check("max_new_tokens", least, "give 1 or more.", least >= 1)
        _check("top_logprobs", self.top_logprobs, "give 0 or more.", self.top_logprobs >= 0)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of the answer: its log-probability under the model, the entropy in nats, and the most
    likely alternatives with their log-probabilities. It is delivered once it has passed through the
    model, with its `text` and, if the request is scored, with its projected states in the layers
    that were asked for (`nodes`) or its `risk` by a token probe."""

    id: int
    logprob: float
    entropy: float
    text: str = ""
    top: tuple[tuple[int, float], ...] = ()
    nodes: "Float[Tensor, 'layers node_dim'] | None" = None
    risk: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The whole answer. `record` is what was recorded of it."""

    tokens: tuple[int, ...]
    text: str
    ended: Ended
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    record: "RowCopy | None" = None


Last = TypeVar("Last")


class Events(Generic[Last]):
    """The events of a request: its tokens, then one of type `last`, or an error. They are taken
    with `get` or by iterating, or they are given to a function (`on_event`)."""

    def __init__(self, last: type[Last]) -> None:
        self._last = last
        self._events: queue.SimpleQueue[Token | Last | ClewError] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._call: Callable[[Token | Last | ClewError], None] | None = None

    def get(self, timeout: float | None = None) -> Token | Last:
        """The next event. Raises TimeoutError, or the ClewError that ended the request."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no token within {timeout} seconds") from None
        if isinstance(event, ClewError):
            raise event
        return event

    def __iter__(self) -> Iterator[Token | Last]:
        """All events up to and including the last one."""
        while True:
            event = self.get()
            yield event
            if isinstance(event, self._last):
                return

    def on_event(self, call: Callable[[Token | Last | ClewError], None]) -> None:
        """Have `call` called with every event, those before included, from another thread: it must
        return quickly, and must not raise."""
        with self._lock:
            self._call = call
            while not self._events.empty():
                self._give(self._events.get())

    def put(self, event: Token | Last | ClewError) -> None:
        """Deliver an event; for whoever answers the request."""
        with self._lock:
            if self._call is None:
                self._events.put(event)
            else:
                self._give(event)

    def _give(self, event: Token | Last | ClewError) -> None:
        assert (call := self._call) is not None
        if isinstance(event, (self._last, ClewError)):
            self._call = None  # nothing follows: what it refers to need not wait for the ticket
        call(event)


class Ticket(Events[Finished]):
    """A request that was submitted to the engine."""

    def __init__(self, request: Request, on_cancel: Callable[[], None]) -> None:
        super().__init__(Finished)
        self.request = request
        self._on_cancel = on_cancel
        self.is_canceled = False

    def finished(self) -> Finished:
        """Wait for the whole answer."""
        *_, last = self
        assert isinstance(last, Finished)
        return last

    def cancel(self) -> None:
        """End the answer as soon as possible: `Finished` follows, with what there is of it."""
        self.is_canceled = True
        self._on_cancel()
