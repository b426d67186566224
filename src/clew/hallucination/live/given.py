"""Answers that exist already, from a file, a list or a trace store, read a few at a time, as token
ids, and windows of them with their risks, in this process or on the workers of a cluster."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Reporter, WorkAdvanced, ignore_event
from clew.base.urls import as_path
from clew.cluster import Spread, spread
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.labels.answers import open_traces
from clew.hallucination.labels.methods import match_answer
from clew.hallucination.live.scoring import (
    CPU_ROWS,
    GPU_ROWS,
    WINDOW_BATCHES,
    AnswerScorer,
    Scored,
    ToScore,
)
from clew.hallucination.live.session import Session
from clew.hallucination.llm.prompts import Encoder
from clew.hallucination.questions import list_records, open_rows
from clew.hallucination.questions.answered import (
    AnsweredQuestion,
    read_answered,
    refuse_unanswered,
)
from clew.hallucination.questions.records import Row
from clew.hallucination.samples.source import hash_traces
from clew.hallucination.traces.schema import CONTEXT
from clew.hallucination.traces.token_texts import split_texts
from clew.storage.manifest import MANIFEST_NAME
from clew.storage.reader import ShardReader
from clew.storage.reading import hash_text

_TRACE_COLUMNS = (
    *("question_id", "question", "answer", "accepted_answers", "stop_reason"),
    *("tokens", "prompt_length"),
)
_CORRECT_SCORE = 0.5
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class GivenAnswer:
    """An answer to score; `prompt` and `tokens` are the token ids that were generated, if known."""

    about: AnsweredQuestion
    prompt: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    stop_reason: str = "end"

    @cached_property
    def hallucinated(self) -> bool | None:
        """The label: as given, or by the accepted answers; None if neither exists, or if the answer
        is a refusal."""
        about = self.about
        if about.hallucinated is not None or not about.accepted:
            return about.hallucinated
        match = match_answer("alias", about.answer, about.accepted, about.question)
        return None if match.is_refused else match.score < _CORRECT_SCORE


def open_given(answers: Any, detector: Detector) -> "GivenAnswers":
    """The answers of a file, a Hugging Face dataset, a trace store, or of a list or DataFrame.
    Raises InputError if there are none, or if the traces are another model's."""
    if not isinstance(answers, str | Path):
        return RowAnswers(list(list_records(answers)), name="the list of answers")
    path = as_path(answers)
    if (path / MANIFEST_NAME).exists():
        return TraceAnswers(path, detector)
    return RowAnswers(str(answers), name=path.name)


class RowAnswers:
    """Answers from records. They are read once to count them, then again to be scored. `identity`
    changes with any of them; `is_training_data`: the detector is known to have been fitted on
    them."""

    is_training_data = False

    def __init__(self, source: str | list[Any], *, name: str) -> None:
        self._source, self._name = source, name
        digest, count = hashlib.sha256(), 0
        for row in self._rows()[1]:
            if not count:
                refuse_unanswered(name, row)
            about = read_answered(row, "")
            parts = [about.id, about.question, about.answer, about.context, about.problem]
            digest.update(json.dumps(parts).encode())
            count += 1
        if not count:
            raise InputError(f"{name} is empty: give at least one answer.")
        self.count = count
        self.identity = {"name": name, "sha256": digest.hexdigest()}

    def read(self, first: int) -> Iterator[GivenAnswer]:
        """The answers from number `first` on."""
        stem, rows = self._rows()
        for row in islice(rows, first, None):
            yield GivenAnswer(about=read_answered(row, stem))

    def _rows(self) -> tuple[str, Iterable[Row]]:
        if isinstance(self._source, str):
            source = open_rows(self._source)
            return source.stem, (row for row in source.rows if not row.is_blank)
        rows = enumerate(self._source)
        return "answer", (Row(number=n, where=f"answer {n + 1}", record=r) for n, r in rows)


class TraceAnswers:
    """The answers of a trace store, with the tokens that were generated."""

    def __init__(self, path: Path, detector: Detector) -> None:
        self._store = open_traces(path)
        settings = self._store.manifest.settings
        detector.refuse_other(settings.get("model") or {})
        self.count = sum(shard.rows for shard in self._store.shards)
        if not self.count:
            raise InputError(
                f'"{path}" has no traces yet: let "clew extract" finish a shard first.'
            )
        shards = [shard.sha256 for shard in self._store.shards]
        self.identity = {"name": path.name, "sha256": hash_text(*shards)}
        fitted_on = None if detector.origin is None else detector.origin.data.get("traces")
        self.is_training_data = fitted_on == hash_traces(self._store.manifest)

    def read(self, first: int) -> Iterator[GivenAnswer]:
        for index, entry in enumerate(self._store.shards):
            if first >= entry.rows:
                first -= entry.rows
                continue
            yield from islice(_read_shard(self._store.peek(index)), first, None)
            first = 0


GivenAnswers = RowAnswers | TraceAnswers


def _read_shard(shard: ShardReader) -> Iterator[GivenAnswer]:
    columns = [shard.read_column(name).to_pylist() for name in _TRACE_COLUMNS]
    contexts = [None] * len(columns[0])
    if CONTEXT in shard.schema.names:
        contexts = shard.read_column(CONTEXT).to_pylist()
    for name, question, text, accepted, ended, tokens, prompt, context in zip(
        *columns, contexts, strict=True
    ):
        border = prompt or 0
        about = AnsweredQuestion(
            id=name,
            question=question or "",
            answer=text or "",
            context=context,
            accepted=tuple(alias for alias in accepted or () if alias and alias.strip()),
            problem=None if border else "its prompt is unknown, so there is nothing to score",
        )
        yield GivenAnswer(
            about=about,
            prompt=tuple(tokens[:border]),
            tokens=tuple(tokens[border:]),
            stop_reason=ended or "end",
        )


@dataclass(frozen=True, kw_only=True)
class EncodedAnswer:
    """An answer ready to be scored. `is_retokenized`: its text gives other tokens than those that
    were generated; None if those are unknown."""

    given: GivenAnswer
    to_score: ToScore
    is_retokenized: bool | None


def encode_given(encoder: Encoder, answers: Sequence[GivenAnswer]) -> list[EncodedAnswer]:
    """Tokenize answers and their prompts, where the tokens are not known."""
    prompts = _encode_prompts(encoder, answers)
    texts = encoder.encode_answers([given.about.answer for given in answers])
    return [
        _encode_one(given, prompt, tokens)
        for given, prompt, tokens in zip(answers, prompts, texts, strict=True)
    ]


def _encode_prompts(encoder: Encoder, answers: Sequence[GivenAnswer]) -> list[Sequence[int] | str]:
    to_encode = [given.about for given in answers if given.prompt is None]
    encoded = encoder.encode_prompts(
        [about.question for about in to_encode], [about.context for about in to_encode]
    )
    found = iter(list(encoded) if to_encode else [])
    return [next(found) if given.prompt is None else given.prompt for given in answers]


def _encode_one(
    given: GivenAnswer, prompt: Sequence[int] | str, text_tokens: list[int]
) -> EncodedAnswer:
    about, tokens = given.about, text_tokens if given.tokens is None else given.tokens
    problem = about.problem
    if isinstance(prompt, str):
        problem, prompt = problem or prompt, ()
    return EncodedAnswer(
        given=given,
        to_score=ToScore(
            prompt=prompt,
            tokens=tokens,
            question=about.question,
            text=about.answer,
            stop_reason=given.stop_reason,
            name=about.id,
            problem=problem,
        ),
        is_retokenized=None if given.tokens is None else list(given.tokens) != text_tokens,
    )


RiskRow = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WindowScorer:
    """Scores windows of answers; `tokens`: with the risk of every token."""

    session: Session
    scorer: AnswerScorer
    tokens: bool

    def score(self, window: Sequence[GivenAnswer], reporter: Reporter) -> list[RiskRow]:
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

    def open(self) -> Callable[[int], list[RiskRow]]:
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

    def score(self, first: int) -> list[RiskRow]:
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
) -> Iterator[list[RiskRow]]:
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
