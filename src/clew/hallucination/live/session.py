"""A model with a detector: answers come with their risk, whether they are generated or exist
already. The one scoring path of `clew ask`, `clew score` and `clew serve`."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

from clew.base.cpu import Threads
from clew.base.errors import ClewError, InputError, QueueFullError
from clew.base.progress import Note, Reporter, log_event
from clew.base.tables import Tabular
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.detectors.data import (
    STATE_WORDS,
    Risk,
    RiskLevel,
    State,
    Verdict,
    unavailable,
)
from clew.hallucination.live.delivery import Delivery, LiveAnswer, LiveTicket
from clew.hallucination.live.scoring import AnswerScorer, read_generation, recorded_columns
from clew.hallucination.llm.device_map import explain_spread, is_spread
from clew.hallucination.llm.embedded import DeviceMap
from clew.hallucination.llm.engine import Engine, EngineLoad
from clew.hallucination.llm.grammar import Grammars
from clew.hallucination.llm.models import (
    LoadedModel,
    context_tokens,
    describe_model,
    end_tokens,
    load_model,
    settle_threads,
)
from clew.hallucination.llm.prompts import Cut, Encoder, Prompt, with_chat_template
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.requests import Request, Sampling, Token
from clew.hallucination.questions import Question

Result = TypeVar("Result")


class Session:
    """Generates and scores answers. Use it as a context manager, or call `close`. The engine starts
    with the first request: a session that only scores given answers has none."""

    def __init__(
        self,
        loaded: LoadedModel,
        detector: Detector,
        *,
        max_rows: int = 64,
        max_waiting: int = 256,
        vectors: bool = False,
        reporter: Reporter = log_event,
        threads: Threads | None = None,
    ) -> None:
        """With `vectors`, answers come with what adaptation needs of them. Raises InputError if the
        detector is for another model or chat template."""
        name = loaded.name or str(loaded.model.name_or_path)
        if is_spread(loaded.model):
            reporter(Note(explain_spread(loaded.model)))
        detector.refuse_other(
            describe_model(name, loaded.model, loaded.quantize),
            with_chat_template(detector.prompt, loaded.tokenizer),
        )
        if detector.warning:
            reporter(Note(f"warning: {detector.warning}"))
        self.loaded, self.detector = loaded, detector.to(loaded.device)
        self.prompt: Prompt = detector.prompt
        self.generation = read_generation(detector)
        self.tokenizer = loaded.tokenizer
        self.encoder = Encoder(self.tokenizer, self.prompt, context_tokens(loaded.model))
        _ = self.encoder.border  # refuses a chat template that cannot be used
        self._max_rows, self._max_waiting, self._vectors = max_rows, max_waiting, vectors
        self._starting = threading.Lock()
        self._engine: Engine | None = None
        self._delivery: Delivery | None = None
        self._is_closed = False
        self._threads, self._reporter = threads, reporter

    @classmethod
    def open(
        cls,
        detector: Detector | str | Path,
        *,
        model: str | LoadedModel | None = None,
        device: str = "auto",
        dtype: str = "auto",
        device_map: DeviceMap | None = None,
        offload_folder: str | Path | None = None,
        max_rows: int = 64,
        max_waiting: int = 256,
        vectors: bool = False,
        reporter: Reporter = log_event,
        threads: Threads | None = None,
    ) -> Self:
        """Load a detector, and its model unless one is given. `dtype` "auto" is that of the
        detector's training answers. `threads` are chosen for the model, and restored when the
        session is closed. Raises InputError for another model than the detector's."""
        if not isinstance(detector, Detector):
            detector = load_detector(detector)
        loaded = model if isinstance(model, LoadedModel) else None
        if loaded is None:
            ours = detector.model
            loaded = load_model(
                str(model or ours["id"]),
                device=device,
                dtype=ours.get("dtype") or dtype if dtype == "auto" else dtype,
                quantize=ours.get("quantize"),
                revision=ours.get("revision") if model in (None, ours["id"]) else None,
                device_map=device_map,
                offload_folder=offload_folder,
            )
        if threads is not None:
            settle_threads(threads, loaded.model)
        return cls(
            loaded,
            detector,
            max_rows=max_rows,
            max_waiting=max_waiting,
            vectors=vectors,
            reporter=reporter,
            threads=threads,
        )

    def submit(self, request: Request) -> LiveTicket:
        """Have a request answered and scored. May be called from any thread. Raises QueueFullError
        or InputError."""
        return self.start().submit(request)

    def ask(
        self, question: str, context: str | None = None, *, max_new_tokens: int | None = None
    ) -> LiveAnswer:
        """Answer one question as the detector's training answers were generated, and wait for
        it."""
        request = self.make_request(question, context, max_new_tokens=max_new_tokens)
        return self.submit(request).answer()

    def make_request(
        self,
        question: str,
        context: str | None = None,
        *,
        max_new_tokens: int | None = None,
        cut: Cut | None = None,
        sampling: Sampling | None = None,
    ) -> Request:
        """The request for a question, as the detector's training answers were generated unless
        told otherwise."""
        made = self.generation
        return Request(
            prompt=self.encoder.encode(question, context),
            question=question,
            max_new_tokens=max_new_tokens or made.max_new_tokens,
            cut=cut or made.cut,
            sampling=sampling or Sampling(),
        )

    @cached_property
    def grammars(self) -> Grammars:
        """For answers that have a JSON schema."""
        return Grammars(self.tokenizer, end_tokens(*self.loaded))

    def scorer(
        self, *, rows: int | None = None, tokens: bool = False, vectors: bool = False
    ) -> AnswerScorer:
        """Gives the risks of answers that exist already, `rows` at a time and, with `tokens`, those
        of their tokens, with `vectors`, what adaptation needs of them; it takes turns with the
        answers that are being generated."""
        return AnswerScorer(
            self.loaded,
            self.detector,
            rows=rows,
            tokens=tokens,
            vectors=vectors or self._vectors,
            reporter=self._reporter,
            call=self.call,
        )

    def call(self, function: Callable[[], Result], /) -> Result:
        """Call a function while nothing else uses the model."""
        with self._starting:
            if self._engine is None:
                return function()
            engine = self._engine
        return engine.call(function)

    @property
    def most_at_once(self) -> int | None:
        """How many answers may be asked for together, if the detector draws others to compare them
        with, which wait in the same queue."""
        draws = self.generation.draws if "samples" in self.detector.fields else 0
        return max(1, self._max_waiting // (1 + draws)) if draws else None

    @property
    def load(self) -> EngineLoad | None:
        """What the engine does; None before the first request."""
        return None if self._engine is None else self._engine.load

    @property
    def max_tokens(self) -> int:
        """Tokens that a prompt and its answer may have together: what the model takes, and the
        engine has memory for."""
        most = self.encoder.max_tokens
        return most if self._engine is None else min(most, self._engine.max_tokens)

    @property
    def is_running(self) -> bool:
        """Whether requests are answered: neither closed, nor ended by an error."""
        if self._is_closed or self._engine is None or self._delivery is None:
            return not self._is_closed
        return self._engine.is_running and self._delivery.is_running

    def start(self) -> Delivery:
        """Start the engine, as the first request does."""
        with self._starting:
            if self._is_closed:
                raise ClewError("the session is closed and takes no more requests.")
            if self._engine is None or self._delivery is None:
                detector = self.detector
                recording = Recording(
                    shape=detector.shape,
                    basis=detector.basis,
                    columns=recorded_columns(detector, vectors=self._vectors),
                    token_layers=probe.layers if (probe := detector.token_probe) else (),
                )
                self._engine = Engine(
                    self.loaded, recording, max_rows=self._max_rows, max_waiting=self._max_waiting
                )
                self._delivery = Delivery(
                    self.loaded, detector, self._engine, vectors=self._vectors
                )
            return self._delivery

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Accept no more requests; running answers have that long to finish, the others are
        canceled."""
        with self._starting:
            self._is_closed = True
            engine, delivery = self._engine, self._delivery
        if engine is not None:
            engine.close(drain_seconds=drain_seconds)
        if delivery is not None:
            delivery.close()
        if self._threads is not None:
            self._threads.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Answers that may be generated before the first of them is taken.
_AHEAD = 128
_TOKEN = pa.struct([("token", pa.string()), ("risk", pa.float64()), ("logprob", pa.float64())])
_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "question", "context", "answer", "ended")),
        ("risk", pa.float64()),
        ("verdict", pa.string()),
        ("risk_level", pa.string()),
        ("threshold", pa.float64()),
        *((name, pa.string()) for name in ("state", "reason", "detector", "method")),
        ("distance", pa.float64()),
        ("token_probability_risk", pa.float64()),
        ("warning", pa.string()),
        ("tokens", pa.list_(_TOKEN)),
    ]
)


@dataclass(frozen=True, kw_only=True)
class AskedAnswer:
    """An answer, and what the detector says about it. `tokens` are the answer's, each with its own
    risk where the detector has one; `ended` says why the answer ended, "" if there is none;
    `warning` says that the detector may be guessing."""

    question: Question
    text: str
    tokens: tuple[Token, ...]
    ended: str
    assessment: Risk
    detector: str
    warning: str | None = None

    @property
    def risk(self) -> float | None:
        """The probability that the answer is hallucinated; None if it could not be checked, or is
        not familiar."""
        return self.assessment.risk

    @property
    def verdict(self) -> Verdict | None:
        return self.assessment.verdict

    @property
    def risk_level(self) -> RiskLevel | None:
        """What the verdict says: "low" or "high"; None without one."""
        return self.assessment.risk_level

    @property
    def state(self) -> State:
        return self.assessment.state

    @property
    def reason(self) -> str | None:
        """Why the state is not "checked"."""
        return self.assessment.reason

    def to_dict(self) -> dict[str, Any]:
        """One row of the table, and one line of JSON."""
        asked = self.question
        tokens = [{"token": t.text, "risk": t.risk, "logprob": t.logprob} for t in self.tokens]
        return {
            "id": asked.id,
            "question": asked.question,
            "context": asked.context,
            "answer": self.text,
            "ended": self.ended,
            **self.assessment.to_dict(),
            "detector": self.detector,
            "warning": self.warning,
            "tokens": tokens,
        }

    def __repr__(self) -> str:
        risk = "" if self.risk is None else f"risk {self.risk:.2f} ({self.risk_level}), "
        return f"AskedAnswer({self.text!r}: {risk}{STATE_WORDS[self.state]})"


@dataclass(frozen=True, kw_only=True, repr=False)
class AskResult(Tabular):
    """The answers, in the order of the questions: a sequence, and a table with one row each."""

    answers: tuple[AskedAnswer, ...]

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_pylist([one.to_dict() for one in self.answers], schema=_COLUMNS)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, place: int) -> AskedAnswer:
        return self.answers[place]

    def __iter__(self) -> Iterator[AskedAnswer]:
        return iter(self.answers)

    def __repr__(self) -> str:
        return f"AskResult({', '.join(map(repr, self.answers[:3]))}{', ...' * (len(self) > 3)})"


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Asks the model of a session. With `max_new_tokens` None, answers are as long as those that
    the detector was trained on. Use it in a `with` block, which closes the session."""

    session: Session
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def ask(self, questions: Iterable[Question]) -> Iterator[AskedAnswer]:
        """The answers in the order of the questions, many of them generated at once. A question
        that fails, or does not fit the model, is answered with the state "unavailable"."""
        waiting: deque[tuple[Question, LiveTicket | InputError]] = deque()
        try:
            for question in questions:
                while (ticket := self._submit(question, can_wait=bool(waiting))) is None:
                    yield self._finish(*waiting.popleft())
                waiting.append((question, ticket))
                if len(waiting) >= _AHEAD:
                    yield self._finish(*waiting.popleft())
            while waiting:
                yield self._finish(*waiting.popleft())
        finally:
            for _, left in waiting:
                if not isinstance(left, InputError):
                    left.cancel()

    def _submit(self, question: Question, *, can_wait: bool) -> LiveTicket | InputError | None:
        """None if the queue is full, and another answer can be waited for."""
        try:
            request = self.session.make_request(
                question.question,
                question.context,
                max_new_tokens=self.max_new_tokens,
                sampling=self.sampling,
            )
            return self.session.submit(request)
        except InputError as error:
            return error
        except QueueFullError:
            if not can_wait:
                raise
            return None

    def _finish(self, question: Question, ticket: LiveTicket | InputError) -> AskedAnswer:
        detector = self.session.detector.name
        text, ended = "", ""
        tokens: tuple[Token, ...] = ()
        try:
            if isinstance(ticket, InputError):
                raise ticket
            answer = ticket.answer()
            text, tokens, ended, risk = answer.text, answer.tokens, answer.ended, answer.risk
        except ClewError as error:
            if not self.session.is_running:
                raise
            risk = unavailable(str(error), method=detector)
        return AskedAnswer(
            question=question,
            text=text,
            tokens=tokens,
            ended=ended,
            assessment=risk,
            detector=detector,
            warning=self.session.detector.warning,
        )
