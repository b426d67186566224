"""Windows of consecutive answers with their risks, in this process or on the workers of a cluster:
the same answers in the same batches, so the same risks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from clew.base.errors import StoppedError
from clew.base.progress import Reporter, WorkAdvanced, ignore_event
from clew.cluster import Spread, spread
from clew.hallucination.detectors import load_detector
from clew.hallucination.live.given import EncodedAnswer, GivenAnswer, encode_given, open_given
from clew.hallucination.live.scoring import (
    CPU_ROWS,
    GPU_ROWS,
    WINDOW_BATCHES,
    AnswerScorer,
    Scored,
)
from clew.hallucination.live.session import Session
from clew.hallucination.traces.token_texts import split_texts

Row = dict[str, Any]
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class WindowScorer:
    """Scores windows of answers; `tokens`: with the risk of every token."""

    session: Session
    scorer: AnswerScorer
    tokens: bool

    def score(self, window: Sequence[GivenAnswer], reporter: Reporter) -> list[Row]:
        encoded = encode_given(self.session.encoder, window)
        found = self.scorer.score_window(
            [one.to_score for one in encoded],
            lambda count: reporter(WorkAdvanced(count=count)),
        )
        return [
            make_row(self.session, one, risk, tokens=self.tokens)
            for one, risk in zip(encoded, found, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class ScoringWorker:
    """What each worker of a cluster opens: the first `count` answers, scored `rows` at once."""

    answers: Any
    count: int
    detector: str | Path
    model: str | None
    rows: int
    tokens: bool
    device: str
    dtype: str

    @property
    def window(self) -> int:
        return self.rows * WINDOW_BATCHES

    def open(self) -> Callable[[int], list[Row]]:
        """In a worker: the rows of the window that starts at an answer, by its number."""
        detector = load_detector(self.detector)
        session = Session.open(
            detector,
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            reporter=ignore_event,
        )
        scorer = session.scorer(rows=self.rows, tokens=self.tokens)
        windows = WindowScorer(session=session, scorer=scorer, tokens=self.tokens)
        return _Reading(open_given(self.answers, detector).read, self, windows).score


class _Reading:
    """Reads on from window to window: a worker gets those that it scores in their order, unless one
    has died."""

    def __init__(
        self,
        read: Callable[[int], Iterator[GivenAnswer]],
        worker: ScoringWorker,
        windows: WindowScorer,
    ) -> None:
        self._read, self._worker, self._windows = read, worker, windows
        self._next, self._rest = 0, read(0)

    def score(self, first: int) -> list[Row]:
        if first < self._next:
            self._next, self._rest = first, self._read(first)
        skipped = islice(self._rest, first - self._next, None)
        size = min(self._worker.window, self._worker.count - first)
        window = list(islice(skipped, size))
        self._next = first + len(window)
        return self._windows.score(window, ignore_event)


def spread_windows(
    worker: ScoringWorker,
    where: Spread,
    first: int,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> Iterator[list[Row]]:
    """The rows of each window from answer `first` on, in order. Raises StoppedError."""
    firsts, done = range(first, worker.count, worker.window), 0
    if not firsts:
        return
    found = spread(where, worker.open, firsts, reporter, should_stop, count=len, noun="window")
    for rows in found:
        done += 1
        reporter(WorkAdvanced(count=len(rows)))
        yield rows
    if done < len(firsts):
        raise StoppedError("stopped; the risks so far are saved.")


def choose_rows(rows: int | None, device: str) -> int:
    """The number of answers that workers pass at once, for their device."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return rows or (GPU_ROWS if on_gpu else CPU_ROWS)


def make_row(
    session: Session, encoded: EncodedAnswer, found: Scored, *, tokens: bool = False
) -> dict[str, Any]:
    """An answer with its risk, as in the file."""
    about, risk = encoded.given.about, found.risk
    row = {
        "id": about.id,
        "question": about.question,
        "answer": about.answer,
        "risk": _rounded(risk.risk),
        "verdict": risk.verdict,
        "state": risk.state,
        "reason": risk.reason,
        "method": risk.method,
        "threshold": _rounded(risk.threshold),
        "distance": _rounded(risk.distance),
        "answer_tokens": len(encoded.to_score.tokens),
        "hallucinated": encoded.given.hallucinated,
        "retokenized": encoded.is_retokenized,
    }
    return row | {"tokens": _token_rows(session, encoded, found)} if tokens else row


def _token_rows(session: Session, encoded: EncodedAnswer, found: Scored) -> list[dict[str, Any]]:
    """The tokens of an answer with their risks; empty if it was not passed."""
    if found.token_risks is None:
        return []
    texts = split_texts(session.tokenizer.decode, list(encoded.to_score.tokens))
    rows = zip(texts, found.token_risks, found.logprobs, strict=True)
    return [
        {"token": text, "risk": _rounded(risk), "logprob": _rounded(logprob)}
        for text, risk, logprob in rows
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
