"""Answers that exist already, from a file, a list or a trace store: read a few at a time, as token
ids, and scored in windows, in this process or on the workers of a cluster."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.base.cpu import Threads
from clew.base.errors import InputError, StoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, ignore_event, report_work
from clew.base.urls import as_path
from clew.cluster.workers import Spread, spread
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.detectors.adaptation import UNLABELED, choose_next
from clew.hallucination.detectors.data import Risk
from clew.hallucination.grounded import (
    GroundedAnswer,
    GroundedReading,
    Reader,
    is_reader,
    load_reader,
)
from clew.hallucination.labels.answers import open_traces
from clew.hallucination.labels.answers import read_answers as read_stored
from clew.hallucination.labels.label import LabelResult
from clew.hallucination.labels.methods import match_answer
from clew.hallucination.live.features import Answer
from clew.hallucination.live.scoring import CPU_ROWS, GPU_ROWS, WINDOW_BATCHES, Scored
from clew.hallucination.live.session import Session
from clew.hallucination.llm.prompts import Encoder
from clew.hallucination.questions import (
    AnsweredQuestion,
    RowFormat,
    describe_answers,
    list_records,
    open_records,
    read_answers,
    refuse_empty,
)
from clew.hallucination.questions.answered import OwnIds
from clew.hallucination.samples.source import hash_traces
from clew.hallucination.traces.schema import CONTEXT, GIVEN, GIVEN_SCORE
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
_NEXT = 20  # answers to label next
_GPU_READ = 512  # answers that a reader gets at once
_NUMBERS = {"correct": 0, "hallucinated": 1, "unlabeled": UNLABELED}
# Of a row: further columns of the file, by their names there.
KEPT = "kept"


@dataclass(frozen=True, kw_only=True)
class ExistingAnswer:
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


def open_answers(answers: Any, detector: Detector | None, format: RowFormat) -> "ExistingAnswers":
    """The answers of a file, a Hugging Face dataset, a trace store, or of a list or DataFrame.
    Raises InputError if there are none, or if the traces are of another model than the
    detector's."""
    if not isinstance(answers, str | Path):
        return RowAnswers(list(list_records(answers)), format)
    path = as_path(answers)
    if (path / MANIFEST_NAME).exists():
        return TraceAnswers(path, detector)
    return RowAnswers(str(answers), format)


class RowAnswers:
    """Answers from records. They are read once to count them, then again to be scored. `identity`
    changes with any of them; `is_training_data`: the detector is known to have been fitted on
    them. `note` is a sentence for the user, or ""."""

    is_training_data = False

    def __init__(self, source: str | list[Any], format: RowFormat) -> None:
        self._source, self._format = source, format
        digest, count = hashlib.sha256(), 0
        rows = open_records(source, format)
        describe_answers(rows)
        rows.stem = ""
        own_ids = OwnIds()
        for about in read_answers(rows, own_ids):
            parts = [about.id, about.question, about.answer, about.context, about.problem]
            digest.update(json.dumps(parts).encode())
            count += 1
        if not count:
            refuse_empty(rows.name)
        self.count, self.note = count, own_ids.text
        self.identity = {"name": rows.name, "sha256": digest.hexdigest(), **format.describe()}

    def read(self, first: int) -> Iterator[ExistingAnswer]:
        """The answers from number `first` on."""
        found = read_answers(open_records(self._source, self._format))
        return (ExistingAnswer(about=about) for about in islice(found, first, None))


class TraceAnswers:
    """The answers of a trace store, with the tokens that were generated."""

    note = ""

    def __init__(self, path: Path, detector: Detector | None) -> None:
        self._store = open_traces(path)
        settings = self._store.manifest.settings
        if detector is not None:
            detector.refuse_other(settings.get("model") or {})
        self.count = sum(shard.rows for shard in self._store.shards)
        if not self.count:
            raise InputError(
                f'"{path}" has no traces yet: let "clew extract" finish a shard first.'
            )
        shards = [shard.sha256 for shard in self._store.shards]
        self.identity = {"name": path.name, "sha256": hash_text(*shards)}
        origin = None if detector is None else detector.origin
        fitted_on = None if origin is None else origin.data.get("traces")
        self.is_training_data = fitted_on == hash_traces(self._store.manifest)

    def read(self, first: int) -> Iterator[ExistingAnswer]:
        for index, entry in enumerate(self._store.shards):
            if first >= entry.rows:
                first -= entry.rows
                continue
            yield from islice(_read_shard(self._store.peek(index)), first, None)
            first = 0


ExistingAnswers = RowAnswers | TraceAnswers


def _read_shard(shard: ShardReader) -> Iterator[ExistingAnswer]:
    columns = [shard.read_column(name).to_pylist() for name in _TRACE_COLUMNS]
    for name in (CONTEXT, GIVEN_SCORE):
        held = name in shard.schema.names
        columns.append(shard.read_column(name).to_pylist() if held else [None] * len(columns[0]))
    for name, question, text, accepted, ended, tokens, prompt, context, score in zip(
        *columns, strict=True
    ):
        border = prompt or 0
        about = AnsweredQuestion(
            id=name,
            question=question or "",
            answer=text or "",
            context=context,
            accepted=tuple(alias for alias in accepted or () if alias and alias.strip()),
            hallucinated=None if score is None else score < _CORRECT_SCORE,
            problem=None if border else "its prompt is unknown, so there is nothing to score",
        )
        yield ExistingAnswer(
            about=about,
            prompt=tuple(tokens[:border]),
            tokens=tuple(tokens[border:]),
            stop_reason=ended or "end",
        )


def encode_answers(
    encoder: Encoder, answers: Sequence[ExistingAnswer]
) -> list[tuple[Answer, bool | None]]:
    """Answers ready to be scored: they and their prompts are tokenized where the tokens are not
    known; and whether their text gives other tokens than those that were generated, None if those
    are unknown."""
    abouts = [one.about for one in answers if one.prompt is None]
    prompts = iter(
        encoder.encode_prompts([a.question for a in abouts], [a.context for a in abouts])
        if abouts
        else ()
    )
    texts = encoder.encode_answers([one.about.answer for one in answers])
    return [
        _encode(one, next(prompts) if one.prompt is None else one.prompt, tokens)
        for one, tokens in zip(answers, texts, strict=True)
    ]


def _encode(
    one: ExistingAnswer, prompt: Sequence[int] | str, text_tokens: list[int]
) -> tuple[Answer, bool | None]:
    about, problem = one.about, one.about.problem
    if isinstance(prompt, str):
        problem, prompt = problem or prompt, ()
    answer = Answer(
        prompt=prompt,
        tokens=text_tokens if one.tokens is None else one.tokens,
        question=about.question,
        text=about.answer,
        stop_reason=one.stop_reason,
        name=about.id,
        problem=problem,
    )
    return answer, None if one.tokens is None else list(one.tokens) != text_tokens


def read_vectors(
    session: Session,
    answers: "ExistingAnswers",
    rows: int | None = None,
    reporter: Reporter = ignore_event,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[np.ndarray | None, bool | None]]:
    """What adaptation needs of each answer (None for one that cannot be checked), and whether it is
    hallucinated, if that is known. Each passes through the model once. Raises StoppedError."""
    scorer, rest = session.scorer(rows=rows, vectors=True), answers.read(0)
    while window := list(islice(rest, scorer.window)):
        if should_stop():
            raise StoppedError("stopped; nothing was written.")
        encoded = [answer for answer, _ in encode_answers(session.encoder, window)]
        found = scorer.score_window(encoded, lambda count: reporter(WorkAdvanced(count=count)))
        for one, existing in zip(found, window, strict=True):
            yield one.vector, existing.hallucinated


def choose_to_label(
    store: Path, detector: Detector, labeled: LabelResult, reporter: Reporter
) -> list[int]:
    """The numbers of the answers of a trace store to label next, Labels
    of a person and of the answers' file count as known."""
    answers = TraceAnswers(store, detector)
    started = WorkStarted(noun="answers", verb="read", planned=answers.count)
    with (
        Session.open(detector, reporter=reporter, threads=Threads(None, reporter)) as session,
        report_work(reporter, started),
    ):
        vectors = [vector for vector, _ in read_vectors(session, answers, reporter=reporter)]
    rows = {row.global_example_id: row for row in labeled.rows}
    found: list[tuple[int, np.ndarray, int]] = []
    for stored, vector in zip(read_stored(open_traces(store)), vectors, strict=True):
        row = rows.get(stored.global_example_id)
        if row is not None and vector is not None:
            is_known = row.correction is not None or row.method == GIVEN
            label = row.label(labeled.score_threshold) if is_known else "unlabeled"
            if label in _NUMBERS:  # neither refused nor excluded
                found.append((stored.global_example_id, vector, _NUMBERS[label]))
    if not found:
        return []
    numbers, matrix, labels = zip(*found, strict=True)
    before = detector.ranking(len(matrix[0]))
    chosen = choose_next(np.stack(matrix), np.array(labels), before, _NEXT)
    return [numbers[row] for row in chosen]


RiskRow = dict[str, Any]


class _Windows:
    """The first `count` answers, `size` at a time."""

    def __init__(self, answers: "ExistingAnswers", count: int, size: int) -> None:
        self._answers, self._count, self.size = answers, count, size
        self._next, self._rest = 0, iter(list[ExistingAnswer]())

    def read(self, first: int) -> list[ExistingAnswer]:
        """Those from an answer on, by its number. A worker gets its windows in their order, unless
        another has died: it reads on from one to the next."""
        if first < self._next or not self._next:
            self._next, self._rest = first, self._answers.read(first)
        skipped = islice(self._rest, first - self._next, None)
        window = list(islice(skipped, min(self.size, self._count - first)))
        self._next = first + len(window)
        return window


class WindowScorer:
    """Scores the first `count` answers, one window after the other, `rows` at once; `tokens`: with
    the risk of every token."""

    def __init__(
        self,
        session: Session,
        answers: "ExistingAnswers",
        count: int,
        *,
        rows: int | None,
        tokens: bool,
        reporter: Reporter = ignore_event,
    ) -> None:
        self._session, self._tokens, self._reporter = session, tokens, reporter
        self._scorer = session.scorer(rows=rows, tokens=tokens)
        self.window = self._scorer.window
        self._windows = _Windows(answers, count, self.window)

    def score(self, first: int) -> list[RiskRow]:
        """The rows of the window that starts at an answer, by its number."""
        window = self._windows.read(first)
        encoded = encode_answers(self._session.encoder, window)
        found = self._scorer.score_window(
            [answer for answer, _ in encoded],
            lambda count: self._reporter(WorkAdvanced(count=count)),
        )
        return [self._row(*one) for one in zip(window, encoded, found, strict=True)]

    def _row(
        self, existing: ExistingAnswer, encoded: tuple[Answer, bool | None], found: Scored
    ) -> RiskRow:
        """An answer with its risk, as in the file."""
        answer, is_retokenized = encoded
        row = _describe(existing, found.risk, found.risk.method, len(answer.tokens))
        row |= {
            "retokenized": is_retokenized,
            "token_probability_risk": _rounded(found.risk.token_probability_risk),
        }
        return row | {"tokens": self._token_rows(answer, found)} if self._tokens else row

    def _token_rows(self, answer: Answer, found: Scored) -> list[dict[str, Any]]:
        """The tokens of an answer with their risks; empty if it was not passed."""
        if found.token_risks is None:
            return []
        texts = split_texts(self._session.tokenizer.decode, list(answer.tokens))
        rows = zip(texts, found.token_risks, found.logprobs, strict=True)
        return [
            {"token": text, "risk": _rounded(risk), "logprob": _rounded(logprob)}
            for text, risk, logprob in rows
        ]


class ReaderScorer:
    """The same with a reader, which compares each answer with its sources."""

    def __init__(
        self,
        reader: Reader,
        answers: "ExistingAnswers",
        count: int,
        *,
        rows: int | None,
        tokens: bool,
        reporter: Reporter = ignore_event,
    ) -> None:
        self._reader, self._tokens, self._reporter = reader, tokens, reporter
        self._rows = rows or (CPU_ROWS if reader.device.type == "cpu" else _GPU_READ)
        self.window = self._rows * WINDOW_BATCHES
        self._windows = _Windows(answers, count, self.window)

    def score(self, first: int) -> list[RiskRow]:
        window, rest = [], iter(self._windows.read(first))
        while some := list(islice(rest, self._rows)):
            found = self._reader.read([_as_grounded(one.about) for one in some])
            window += [self._row(*one) for one in zip(some, found, strict=True)]
            self._reporter(WorkAdvanced(count=len(some)))
        return window

    def _row(self, existing: ExistingAnswer, found: GroundedReading) -> RiskRow:
        row = _describe(existing, found, self._reader.name, len(found.places))
        row["reason"] = existing.about.problem or found.reason
        row["spans"] = [
            {
                **{"start": one.start, "end": one.end, "text": one.text},
                "risk": _rounded(one.risk),
                "nearest": None if one.nearest is None else one.nearest.text,
            }
            for one in found.spans
        ]
        if self._tokens:
            row["tokens"] = [
                {"token": one.text, "risk": _rounded(one.risk), "logprob": None}
                for one in found.tokens
            ]
        return row


def _as_grounded(about: AnsweredQuestion) -> GroundedAnswer:
    sources = (about.context,) if about.context else ()
    return GroundedAnswer(
        answer=about.answer if about.problem is None else "",
        sources=sources,
        question=about.question or None,
    )


def _describe(
    existing: ExistingAnswer, risk: Risk | GroundedReading, method: str, tokens: int
) -> RiskRow:
    """An answer with its risk, as in the file."""
    about = existing.about
    return {
        **{"id": about.id, "question": about.question, "answer": about.answer},
        "risk": _rounded(risk.risk),
        "verdict": risk.verdict,
        "state": risk.state,
        "reason": risk.reason,
        "method": method,
        "threshold": _rounded(risk.threshold),
        "distance": _rounded(risk.distance),
        "answer_tokens": tokens,
        "hallucinated": existing.hallucinated,
        "retokenized": None,
        "risk_level": risk.risk_level,
        "token_probability_risk": None,
        KEPT: dict(about.kept),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


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
    format: RowFormat

    @property
    def window(self) -> int:
        return self.rows * WINDOW_BATCHES

    def open(self) -> Callable[[int], list[RiskRow]]:
        """In a worker: what scores a window."""
        options: Any = {"rows": self.rows, "tokens": self.tokens}
        if is_reader(self.detector):
            reader = load_reader(self.detector, device=self.device, model=self.model)
            texts = open_answers(self.answers, None, self.format)
            return ReaderScorer(reader, texts, self.count, **options).score
        detector = load_detector(self.detector)
        session = Session.open(
            detector, model=self.model, device=self.device, dtype=self.dtype, reporter=ignore_event
        )
        answers = open_answers(self.answers, detector, self.format)
        return WindowScorer(session, answers, self.count, **options).score

    def spread(
        self, where: Spread, reporter: Reporter, should_stop: Callable[[], bool], first: int
    ) -> Iterator[list[RiskRow]]:
        """The rows of each window from answer `first` on, in order. Raises StoppedError."""
        firsts, done = range(first, self.count, self.window), 0
        if not firsts:
            return
        found = spread(where, self.open, firsts, reporter, should_stop, count=len, noun="window")
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
