"""What the page shows besides new answers: a trace store with its labels and risks, and finished
comparisons. Everything is opened when the server starts; clients name no path."""

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float32, Float64, Int64
from pydantic import BaseModel, Field

from clew.base.errors import InputError, StoreError
from clew.hallucination.answer_page.picture import ShownAnswer, read_answer
from clew.hallucination.answer_page.store import Kind, iter_shards, judge_answers, open_traces
from clew.hallucination.answer_page.verdict import Verdicts, read_verdicts
from clew.hallucination.comparison.report.comparison import Comparison, MethodResult, color_of
from clew.hallucination.detectors.data import judge, level_of
from clew.hallucination.detectors.similar_answers import (
    KnownAnswers,
    KnownTexts,
    choose_known,
    fit_known,
)
from clew.hallucination.live.features import why_unavailable
from clew.hallucination.traces import Trace, TraceBatchLoader
from clew.hallucination.traces.compact import BASIS_NAME, Basis, load_basis
from clew.hallucination.traces.token_texts import read_token_texts
from clew.pages.numbers import as_dict
from clew.storage.reading import irregular_kind, read_bounded

REPORT_FILE = "report.html"
# The report, the answer pages that it links and its pictures.
_NAME = re.compile(r"report\.html|answers/answer-[0-9]+\.html|figures/[\w-]+\.png", re.ASCII)
_PATTERNS = (REPORT_FILE, "answers/*.html", "figures/*.png")
_MOST_BYTES = 64 << 20
_TEXTS = ("question", "answer", "category", "question_id")
# Longer texts are cut in the index; the trace of an answer has all of it.
_LONGEST = 600
_MOST_WORDS = 8
_LONGEST_SEARCH, _LAST_PAGE = 200, 10_000_000

Order = Literal["number", "risk", "worst"]
Label = Literal["any", "hallucinated", "correct", "none"]
Outcome = Literal["any", "mistakes", "missed", "false_alarm"]


class Search(BaseModel):
    """Which answers to list, and `at` which page. Every word of `text` must be in the question or
    the answer."""

    text: str = Field("", max_length=_LONGEST_SEARCH)
    label: Label = "any"
    outcome: Outcome = "any"
    least_risk: float = Field(0.0, ge=0, le=1)
    most_risk: float = Field(1.0, ge=0, le=1)
    order: Order = "number"
    at: int = Field(0, ge=0, le=_LAST_PAGE)


@dataclass(frozen=True, kw_only=True)
class RiskColumn:
    """The risks of a comparison's best method, NaN for answers that it was fitted on and for those
    that are not checked live either, which have the reason by row in `unavailable`."""

    method: str
    threshold: float
    values: Float64[np.ndarray, " answers"]
    unavailable: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class AnswerIndex:
    """All answers of a store. `hallucinated` is 1 or 0, NaN where there is no label."""

    numbers: Int64[np.ndarray, " answers"]
    texts: pa.Table
    hallucinated: Float32[np.ndarray, " answers"]
    risk: RiskColumn | None

    def __len__(self) -> int:
        return len(self.numbers)

    def find(self, search: Search) -> Int64[np.ndarray, " found"]:
        """The rows that match, in the order that was asked for."""
        kept, label, rank = self._matches_text(search.text), self.hallucinated, np.zeros(len(self))
        labels = {"none": np.isnan(label), "hallucinated": label == 1, "correct": label == 0}
        kept &= labels.get(search.label, True)
        if self.risk is not None:
            risk, threshold = self.risk.values, self.risk.threshold
            missed = (risk <= threshold) & (label == 1)
            false_alarm = (risk > threshold) & (label == 0)
            mistakes = {"missed": missed, "false_alarm": false_alarm, "any": True}
            kept &= mistakes.get(search.outcome, missed | false_alarm)
            if search.least_risk > 0 or search.most_risk < 1:
                kept &= (risk >= search.least_risk) & (risk <= search.most_risk)
            # Smaller comes first, NaN last. The worst mistake is the one whose label the risk makes
            # least likely.
            rank = {"risk": -risk, "worst": -np.abs(risk - label)}.get(search.order, rank)
        rows = np.flatnonzero(kept)
        return rows[np.lexsort((self.numbers[rows], rank[rows]))]

    def describe(self, row: int) -> dict[str, Any]:
        """One line of the list."""
        texts = {name: self.texts.column(name)[row].as_py() for name in _TEXTS}
        found = self._risk_at(row) or {"risk": None, "reason": None}
        return {
            "number": int(self.numbers[row]),
            **texts,
            "label": self.label_at(row),
            "risk": found["risk"],
            "reason": found["reason"],
        }

    def label_at(self, row: int) -> Kind | None:
        value = self.hallucinated[row]
        return None if np.isnan(value) else "hallucinated" if value else "correct"

    def row_of(self, number: int) -> int | None:
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None

    def count_labeled(self) -> int:
        return int((~np.isnan(self.hallucinated)).sum())

    def risk_of(self, number: int) -> dict[str, Any] | None:
        """The comparison's risk of an answer, as the API gives one; None without any."""
        row = self.row_of(number)
        return None if row is None else self._risk_at(row)

    def _risk_at(self, row: int) -> dict[str, Any] | None:
        if self.risk is None:
            return None
        about = {"threshold": self.risk.threshold, "method": self.risk.method}
        if reason := self.risk.unavailable.get(row):
            none = {"risk": None, "verdict": None, "risk_level": None, "state": "unavailable"}
            return {**about, **none, "reason": reason}
        risk = float(self.risk.values[row])
        if np.isnan(risk):
            return None
        verdict = judge(risk, self.risk.threshold)
        level = level_of(verdict)
        found = {"risk": risk, "verdict": verdict, "risk_level": level, "state": "checked"}
        return {**about, **found, "reason": None}

    def _matches_text(self, text: str) -> Bool[np.ndarray, " answers"]:
        found = np.ones(len(self), bool)
        for word in text.split()[:_MOST_WORDS]:
            columns = [self.texts.column(name) for name in _TEXTS]
            hits = [pc.match_substring(column, word, ignore_case=True) for column in columns]
            masks = [pc.fill_null(hit, False).to_numpy() for hit in hits]
            if word.removeprefix("#").isdecimal() and len(word) < 18:
                masks.append(self.numbers == int(word.removeprefix("#")))
            found &= np.logical_or.reduce(masks)
        return found


def build_index(
    loader: TraceBatchLoader,
    scores_file: Path | None,
    score_threshold: float,
    comparisons: Sequence[Verdicts],
) -> AnswerIndex:
    """Read the texts of a store, and join them with its scores and with the risks of the first
    comparison of the same answers. Raises InputError if the scores are of other answers."""
    table = pa.Table.from_batches(_read_texts(loader)).sort_by("number").combine_chunks()
    numbers = table.column("number").to_numpy()
    hallucinated = np.full(len(numbers), np.nan, np.float32)
    if scores_file is not None:
        judged = judge_answers(loader, scores_file, score_threshold)
        labels = np.where(np.isnan(judged.scores), np.nan, judged.hallucinated)
        hallucinated[np.searchsorted(numbers, judged.numbers)] = labels
    joined = (_join_risks(verdicts, numbers, table, hallucinated) for verdicts in comparisons)
    risk = next((column for column in joined if column is not None), None)
    return AnswerIndex(numbers=numbers, texts=table, hallucinated=hallucinated, risk=risk)


def _read_texts(loader: TraceBatchLoader) -> Iterator[pa.RecordBatch]:
    for shard in iter_shards(loader):
        names = (*_TEXTS, "stop_reason")
        columns = [shard.read_column(name).combine_chunks() for name in names]
        short = [pc.utf8_slice_codeunits(column, 0, _LONGEST) for column in columns]
        numbers = shard.read_column("global_example_id").combine_chunks()
        yield pa.RecordBatch.from_arrays([numbers, *short], names=["number", *names])


def _join_risks(
    verdicts: Verdicts, numbers: np.ndarray, table: pa.Table, hallucinated: np.ndarray
) -> RiskColumn | None:
    """The risks by row, and labels where there were none; None for a comparison of other
    answers."""
    best, answers = verdicts.comparison.best, verdicts.answers
    place = np.searchsorted(numbers, answers.numbers).clip(max=len(numbers) - 1)
    if best.name not in answers.risks or (numbers[place] != answers.numbers).any():
        return None
    for name in ("question_id", "answer"):
        ours = table.column(name).take(pa.array(place)).to_pylist()
        theirs = [None if text is None else text[:_LONGEST] for text in answers.texts[name]]
        if any(text not in (None, own) for text, own in zip(theirs, ours, strict=True)):
            return None
    values = np.full(len(numbers), np.nan)
    values[place] = answers.risks[best.name]
    unavailable = _find_unavailable(table, place)
    values[list(unavailable)] = np.nan
    unlabeled = np.isnan(hallucinated[place])
    hallucinated[place[unlabeled]] = answers.labels[unlabeled]
    return RiskColumn(
        method=best.title, threshold=best.threshold, values=values, unavailable=unavailable
    )


def _find_unavailable(table: pa.Table, rows: np.ndarray) -> dict[int, str]:
    """Why some of these rows have no risk, as if they were answered live."""
    columns = [table.column(name).take(pa.array(rows)) for name in ("answer", "stop_reason")]
    reasons = {
        int(row): why_unavailable(range(1), text or "", ended or "end")
        for row, text, ended in zip(rows, *(one.to_pylist() for one in columns), strict=True)
    }
    return {row: reason for row, reason in reasons.items() if reason is not None}


def gather_known(loader: TraceBatchLoader, index: AnswerIndex) -> KnownAnswers | None:
    """Read the states of some answers and fit the probes; None if the store has no states."""
    first = loader.get_batch(0)[0].get("last_hidden")
    if first is None:
        return None
    rows, states = [], []
    for row in choose_known(index.hallucinated, *first.shape).tolist():
        trace = loader.get_trace_by_global_id(int(index.numbers[row]))
        value = None if trace is None else trace.get("last_hidden")
        if value is not None and np.isfinite(value).all():
            rows.append(row)
            states.append(np.array(value))
    if len(rows) < 2:
        return None
    texts = KnownTexts(
        numbers=index.numbers[rows],
        questions=[text or "" for text in index.texts.column("question").take(rows).to_pylist()],
        answers=[text or "" for text in index.texts.column("answer").take(rows).to_pylist()],
        hallucinated=index.hallucinated[rows],
    )
    return fit_known(texts, len(first), lambda layer: np.stack([one[layer] for one in states]))


@dataclass(frozen=True, kw_only=True)
class ShownComparison:
    """A comparison, with the files of its report by name."""

    comparison: Comparison
    files: dict[str, Path]

    def describe(self) -> dict[str, Any]:
        """What the page shows of it, with no path of the machine but the folder's name."""
        found = self.comparison
        model = as_dict(found.part("capture").get("model")).get("id")
        return {
            "name": found.folder.resolve().name,
            "model": model if isinstance(model, str) else None,
            "best": found.best.name if found.has_best else None,
            "chosen_on": found.chosen_on,
            "answers": len(found.test),
            "hallucinated": int(found.test.labels.sum()),
            "has_report": REPORT_FILE in self.files,
            "methods": [_describe_method(method) for method in found.methods],
        }

    def read(self, name: str) -> bytes | None:
        """A file of the report; None if there is none of that name."""
        path = self.files.get(name)
        if path is None or irregular_kind(path, follow_links=False) is not None:
            return None
        try:
            return read_bounded(path, _MOST_BYTES)
        except (OSError, ValueError):
            return None


def show_comparison(comparison: Comparison) -> ShownComparison:
    folder = comparison.folder
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern)]
    named = {path.relative_to(folder).as_posix(): path for path in found}
    files = {name: path for name, path in named.items() if _NAME.fullmatch(name)}
    return ShownComparison(comparison=comparison, files=files)


def _describe_method(method: MethodResult) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "family": method.family,
        "color": color_of(method.family),
        "auroc": method.test_auroc,
        "interval": method.interval,
        "validation": method.val_auroc,
        "ece": method.figure("test_ece"),
        "f1": method.figure("test_f1"),
    }


class BrowsedStore:
    """The answers of a trace store, for the explorer and as known answers beside new ones."""

    def __init__(self, loader: TraceBatchLoader, index: AnswerIndex) -> None:
        self.loader, self.index = loader, index
        self._lock = threading.Lock()
        self._is_prepared = False

    @property
    def model(self) -> dict[str, Any]:
        """The captured model, as in the manifest."""
        model = self.loader.manifest.settings.get("model")
        return model if isinstance(model, dict) else {}

    @property
    def name(self) -> str:
        return self.loader.traces_dir.resolve().name

    @cached_property
    def basis(self) -> Basis | None:
        """The basis of the projected states; None for a store without one."""
        try:
            sha256 = self.loader.manifest.files.get(BASIS_NAME)
            return load_basis(self.loader.traces_dir, sha256)
        except StoreError:
            return None

    @cached_property
    def _known(self) -> KnownAnswers | None:
        return gather_known(self.loader, self.index)

    @property
    def known(self) -> KnownAnswers | None:
        """Gathered on first use, which takes seconds; other threads wait for it."""
        with self._lock:
            return self._known

    def prepare(self) -> None:
        """Gather the known answers in the background."""
        if not self._is_prepared:
            self._is_prepared = True
            threading.Thread(target=lambda: self.known, name="clew-known", daemon=True).start()

    def trace(self, number: int) -> Trace | None:
        """A stored trace, None if there is no such number. Loaders are not for several threads."""
        if self.index.row_of(number) is None:
            return None
        with self._lock:
            trace = self.loader.get_trace_by_global_id(number)
        return trace if trace is not None and trace["tokens"] is not None else None

    def show(self, trace: Trace) -> ShownAnswer:
        """A stored answer with its label."""
        row = self.index.row_of(trace["global_example_id"])
        label = None if row is None else self.index.label_at(row)
        model = self.model.get("id")
        texts, note = read_token_texts(
            trace["tokens"],
            trace.get("tokens_decoded"),
            model if isinstance(model, str) else None,
            None,
        )
        answer = read_answer(trace, texts, label, None)
        return replace(answer, notes=(*answer.notes, note)) if note else answer


@dataclass(frozen=True, kw_only=True)
class PageFiles:
    """The folders that the page shows."""

    store: BrowsedStore | None = None
    comparisons: tuple[ShownComparison, ...] = ()


def open_page_files(
    traces: Path | None = None,
    scores_file: Path | None = None,
    comparisons: tuple[Path, ...] = (),
    *,
    score_threshold: float = 0.5,
) -> PageFiles:
    """Open the folders. Raises InputError or StoreError if one is not what it should be, or the
    scores belong to other answers."""
    if scores_file is not None and traces is None:
        raise InputError(
            "scores need the traces that they are of: give `traces` too.",
            setting="scores_file",
            value=scores_file,
        )
    verdicts = [read_verdicts(folder) for folder in comparisons]
    store = None
    if traces is not None:
        loader = open_traces(traces)
        index = build_index(loader, scores_file, score_threshold, verdicts)
        store = BrowsedStore(loader, index)
    shown = tuple(show_comparison(found.comparison) for found in verdicts)
    return PageFiles(store=store, comparisons=shown)
