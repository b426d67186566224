"""Ask a model and say how far each answer can be trusted: questions in, answers with their risk
out, in the same order."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.base.tables import Tabular
from clew.hallucination.detectors.data import Risk, State, Verdict, unavailable
from clew.hallucination.live.delivery import LiveTicket, LiveToken
from clew.hallucination.live.session import Session
from clew.hallucination.llm.requests import Sampling
from clew.hallucination.questions import Question

# Answers that may be generated before the first of them is taken.
_AHEAD = 128
_TOKEN = pa.struct([("token", pa.string()), ("risk", pa.float64()), ("logprob", pa.float64())])
_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "question", "context", "answer", "ended")),
        ("risk", pa.float64()),
        ("verdict", pa.string()),
        ("threshold", pa.float64()),
        *((name, pa.string()) for name in ("state", "reason", "detector", "method")),
        ("distance", pa.float64()),
        ("tokens", pa.list_(_TOKEN)),
    ]
)


@dataclass(frozen=True, kw_only=True)
class AskedAnswer:
    """An answer, and what the detector says about it. `tokens` are the answer's, each with its own
    risk where the detector has one; `ended` says why the answer ended, "" if there is none."""

    question: Question
    text: str
    tokens: tuple[LiveToken, ...]
    ended: str
    assessment: Risk
    detector: str

    @property
    def risk(self) -> float | None:
        """The probability that the answer is hallucinated; None if it could not be checked."""
        return self.assessment.risk

    @property
    def verdict(self) -> Verdict | None:
        return self.assessment.verdict

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
            "tokens": tokens,
        }

    def __repr__(self) -> str:
        risk = "" if self.risk is None else f"risk {self.risk:.2f}, {self.verdict}, "
        return f"AskedAnswer({self.text!r}: {risk}{self.state})"


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

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            value = self.max_new_tokens
            raise InputError("it must be 1 or more.", setting="max_new_tokens", value=value)

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
            return self.session.submit(request, question=question.question)
        except InputError as error:
            return error
        except QueueFullError:
            if not can_wait:
                raise
            return None

    def _finish(self, question: Question, ticket: LiveTicket | InputError) -> AskedAnswer:
        detector = self.session.detector.name
        text, ended = "", ""
        tokens: tuple[LiveToken, ...] = ()
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
        )
