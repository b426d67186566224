"""An index of the answers of a trace store for the explorer: texts, labels and risks, but no
arrays, so that a store larger than memory can be searched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float32, Float64, Int64

from clew.hallucination.answer_page.store import Kind, iter_shards, judge_answers
from clew.hallucination.answer_page.verdict import Verdicts
from clew.hallucination.live.scoring import why_unavailable
from clew.hallucination.traces import TraceBatchLoader

_TEXTS = ("question", "answer", "category", "question_id")
# Longer texts are cut in the index; the trace of an answer has all of it.
_LONGEST = 600
_MOST_WORDS = 8

Order = Literal["number", "risk", "worst"]
Label = Literal["any", "hallucinated", "correct", "none"]
Outcome = Literal["any", "mistakes", "missed", "false_alarm"]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which answers to list. Every word of `text` must be in the question or the answer."""

    text: str = ""
    label: Label = "any"
    outcome: Outcome = "any"
    least_risk: float = 0.0
    most_risk: float = 1.0
    order: Order = "number"


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
        kept = self._matches_text(search.text) & self._has_label(search.label)
        kept &= self._has_outcome(search.outcome)
        if self.risk is not None and (search.least_risk > 0 or search.most_risk < 1):
            values = self.risk.values
            kept &= (values >= search.least_risk) & (values <= search.most_risk)
        rows = np.flatnonzero(kept)
        return rows[np.lexsort((self.numbers[rows], self._rank(search.order)[rows]))]

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
            none = {"risk": None, "verdict": None, "state": "unavailable"}
            return {**about, **none, "reason": reason}
        risk = float(self.risk.values[row])
        if np.isnan(risk):
            return None
        verdict = "hallucinated" if risk > self.risk.threshold else "correct"
        return {**about, "risk": risk, "verdict": verdict, "state": "checked", "reason": None}

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

    def _has_label(self, label: Label) -> Bool[np.ndarray, " answers"]:
        if label == "any":
            return np.ones(len(self), bool)
        if label == "none":
            return np.isnan(self.hallucinated)
        return self.hallucinated == (label == "hallucinated")

    def _has_outcome(self, outcome: Outcome) -> Bool[np.ndarray, " answers"]:
        if outcome == "any" or self.risk is None:
            return np.ones(len(self), bool)
        flagged = self.risk.values > self.risk.threshold
        known = ~np.isnan(self.risk.values)
        missed = known & ~flagged & (self.hallucinated == 1)
        false_alarm = flagged & (self.hallucinated == 0)
        return {"missed": missed, "false_alarm": false_alarm}.get(outcome, missed | false_alarm)

    def _rank(self, order: Order) -> Float64[np.ndarray, " answers"]:
        """Smaller comes first; NaN comes last."""
        if order == "number" or self.risk is None:
            return np.zeros(len(self))
        if order == "risk":
            return -self.risk.values
        # The worst mistake is the one whose label the risk makes least likely.
        return -np.abs(self.risk.values - self.hallucinated)


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
