"""Read files of scores and of span labels, written by `clew label` or by other means, and apply
them."""

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int8

from clew.base.errors import InputError
from clew.hallucination.labels.table import (
    EXAMPLE_COLUMN,
    ID_COLUMN,
    LabelTable,
    ScoresTable,
    label_into,
)
from clew.storage.reading import hash_file

HigherIs = Literal["correct", "hallucinated"]
SetAside = Literal["refused", "excluded"]
# The class of answers that the model refused.
Refused = Literal["exclude", "correct", "hallucinated"]
_NAMED = 5
# The labels of tokens.
OUTSIDE, UNSURE, CORRECT, HALLUCINATED = -2, -1, 0, 1
_LABELS = {
    **{"correct": CORRECT, "0": CORRECT},
    **{"hallucinated": HALLUCINATED, "1": HALLUCINATED},
    **{"unsure": UNSURE, "-1": UNSURE},
}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores from 0 (hallucinated) to 1 (correct).

    `by_example` has one for each (question_id, global_example_id) if the file distinguishes answers
    to the same question; questions with different scores are then not in `scores`. `answers` has
    the scored texts if `clew label` wrote the file. `set_aside` has the answers that are in no
    class: those that the model refused, and those that a person excluded.
    """

    path: Path
    scores: dict[str, float]
    by_example: dict[tuple[str, int], float]
    answers: dict[tuple[str, int], str]
    notes: tuple[str, ...]
    sha256: str
    set_aside: dict[Hashable, SetAside] = field(default_factory=dict)

    def match(self, question_ids: Sequence[str], example_ids: Sequence[int]) -> np.ndarray:
        """The score of each answer as float32, NaN if the file has none."""
        known: Mapping[Any, float] = self.by_example or self.scores
        keys = self._keys(question_ids, example_ids)
        return np.array([known.get(key, np.nan) for key in keys], dtype=np.float32)

    def find_set_aside(
        self, question_ids: Sequence[str], example_ids: Sequence[int], kind: SetAside
    ) -> Bool[np.ndarray, " answers"]:
        """Which answers are in no class for this reason."""
        keys = self._keys(question_ids, example_ids)
        return np.array([self.set_aside.get(key) == kind for key in keys], dtype=bool)

    def _keys(self, question_ids: Sequence[str], example_ids: Sequence[int]) -> Iterator[Hashable]:
        names = [name.strip() for name in question_ids]
        has_examples = bool(self.by_example) or not self.scores
        return zip(names, map(int, example_ids), strict=True) if has_examples else iter(names)


@dataclass(frozen=True, kw_only=True)
class MatchedScores:
    """`values` are float32, NaN where an answer is in no class: it is `missing` in the file, was
    `refused` by the model, or `excluded` by a person. `notes` are sentences for the user."""

    values: np.ndarray
    missing: np.ndarray
    refused: np.ndarray
    excluded: np.ndarray
    notes: tuple[str, ...]


def read_scores(
    path: str | Path,
    *,
    score_column: str | None = None,
    higher_is: HigherIs | None = None,
) -> Scores:
    """Read a CSV with `question_id` and a score column; raises InputError naming the line.

    The score is `score`, else `hallucination_score`, else the only other column of numbers. It is
    inverted (1 - value) if `higher_is` is "hallucinated" or the name contains "halluc".
    """
    table = ScoresTable(Path(path), score_column)
    turned = higher_is == "hallucinated" if higher_is else "halluc" in table.score_column
    found = _Found(table, turned)
    for line, row in table.rows():
        found.add(line, row)
    found.check()
    return Scores(
        path=table.path,
        scores=_by_question(found.values) if table.example_place is not None else found.values,
        by_example=found.values if table.example_place is not None else {},
        answers=found.answers,
        notes=found.notes(),
        sha256=hash_file(table.path),
        set_aside=found.set_aside,
    )


class _Found:
    """The scores by key, a question's id or (id, example), with the line each came from."""

    def __init__(self, table: ScoresTable, turned: bool) -> None:
        self.table, self.turned = table, turned
        self.values: dict[Any, float] = {}
        self.set_aside: dict[Hashable, SetAside] = {}
        self.answers: dict[Any, str] = {}
        self._lines: dict[Any, int] = {}
        self._doubles = 0
        self._clashes: list[str] = []

    def add(self, line: int, row: Sequence[str]) -> None:
        table = self.table
        name, number = table.parse_key(line, row)
        key: Any = name if number is None else (name, number)
        label = self._read(line, row)
        if table.answer_place is not None:
            self.answers[key] = row[table.answer_place]
        first = self._lines.setdefault(key, line)
        if first != line:
            self._doubles += 1
            self._compare(key, label, first, line)
        elif isinstance(label, float):
            self.values[key] = label
        else:
            self.set_aside[key] = label

    def _read(self, line: int, row: Sequence[str]) -> float | SetAside:
        label = self.table.parse_label(line, row)
        if label in ("correct", "hallucinated"):
            return float(label == "correct")
        if isinstance(label, float):
            return 1.0 - label if self.turned else label
        return "refused" if label == "refused" else "excluded"

    def _compare(self, key: Any, label: float | SetAside, first: int, line: int) -> None:
        before = self.values.get(key, self.set_aside.get(key))
        if before != label:
            name = key if isinstance(key, str) else f"{key[0]} (example {key[1]})"
            texts = [f"{one:g}" if isinstance(one, float) else one for one in (before, label)]
            self._clashes.append(f"{name} (lines {first} and {line}: {texts[0]} and {texts[1]})")

    def check(self) -> None:
        if not self.values and not self.set_aside:
            raise InputError(
                f"{self.table.path} has a header but no scores: label the store with ",
                label_into(self.table.path),
                ".",
            )
        if self._clashes:
            apart = (
                f", or add a column {EXAMPLE_COLUMN} if a question was answered several times"
                if self.table.example_place is None
                else ""
            )
            raise InputError(
                f"{self.table.path} has different scores for the same answer: "
                f"{_some(self._clashes, '; ')}. Keep one line per answer{apart}."
            )

    def notes(self) -> tuple[str, ...]:
        path, column, notes = self.table.path, self.table.score_column, []
        if self.turned:
            notes.append(
                f"{path}: a higher {column} is taken to mean more likely hallucinated, so the "
                f"score is 1 - {column}"
            )
        if self._doubles:
            lines = "1 line repeats" if self._doubles == 1 else f"{self._doubles:,} lines repeat"
            notes.append(f"{path}: {lines} an earlier score")
        return tuple(notes)


def _by_question(by_example: Mapping[tuple[str, int], float]) -> dict[str, float]:
    scores: dict[str, float] = {}
    unequal = set()
    for (question_id, _), score in by_example.items():
        if scores.setdefault(question_id, score) != score:
            unequal.add(question_id)
    return {name: score for name, score in scores.items() if name not in unequal}


def require_scores(
    scores: Scores,
    question_ids: Sequence[str],
    example_ids: Sequence[int],
    *,
    allow_missing: bool,
    refused: Refused = "exclude",
) -> MatchedScores:
    """The scores of a store's answers; raises InputError if some are missing and that is not
    allowed, or if the file has none of them. `refused` is the class of answers that the model
    refused."""
    values = scores.match(question_ids, example_ids)
    declined = scores.find_set_aside(question_ids, example_ids, "refused")
    excluded = scores.find_set_aside(question_ids, example_ids, "excluded")
    missing = np.isnan(values) & ~declined & ~excluded
    if refused != "exclude":
        values[declined] = float(refused == "correct")
    if missing.all():
        raise InputError(_explain_none(scores, question_ids, example_ids))
    names = [question_ids[place] for place in np.flatnonzero(missing).tolist()]
    if names and not allow_missing:
        raise InputError(
            f"{len(names):,} of {len(values):,} answers have no score in {scores.path}, e.g. "
            f"{_some(names)}: label the store again with ",
            label_into(scores.path),
            ", or exclude them with `skip_unlabeled=True`.",
        )
    return MatchedScores(
        values=values,
        missing=missing,
        refused=declined,
        excluded=excluded,
        notes=_shared_notes(scores, question_ids),
    )


def refuse_other_answers(
    scores: Scores,
    question_ids: Sequence[str],
    example_ids: Sequence[int],
    answers: Sequence[str | None],
) -> None:
    """Raise InputError if the file scores other answers: ids alone cannot tell, since two stores of
    the same questions share them."""
    for name, number, answer in zip(question_ids, example_ids, answers, strict=True):
        scored = scores.answers.get((name.strip(), number), answer or "")
        if scored != (answer or ""):
            raise InputError(
                f"{scores.path} does not match the answers in the store: {name} (example "
                f'{number}) is "{scored:.60}" in the file and "{answer or "":.60}" in the '
                "store. Label this store with ",
                label_into("ANOTHER.csv"),
                ".",
            )


def _explain_none(scores: Scores, question_ids: Sequence[str], example_ids: Sequence[int]) -> str:
    if not len(question_ids):
        return 'the store has no answers: run "clew extract" first.'
    theirs, mine = (
        next(iter(scores.by_example or scores.scores or scores.set_aside)),
        question_ids[0],
    )
    if isinstance(theirs, tuple):
        theirs, mine = f"{theirs[0]}, example {theirs[1]}", f"{mine}, example {example_ids[0]}"
    return (
        f"{scores.path} has no score for any answer in the store: the file has IDs like "
        f'"{theirs}", the store has IDs like "{mine}". Give the file that belongs to the store, '
        'or create one with "clew label".'
    )


def _shared_notes(scores: Scores, question_ids: Sequence[str]) -> tuple[str, ...]:
    repeated = len(question_ids) - len(set(question_ids))
    if scores.by_example or not repeated:
        return ()
    return (
        f"{scores.path} has one score per question, but some questions have several answers "
        f"({repeated:,} more answers than questions): all of them get the same score",
    )


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return between.join(names[:_NAMED]) + more


@dataclass(frozen=True, kw_only=True)
class SpanLabels:
    """(start, end, label) of the spans of each answer, in characters, by question and
    `global_example_id`; by question alone (None) if the file does not have the latter."""

    path: Path
    spans: dict[tuple[str, int | None], list[tuple[int, int, int]]]
    sha256: str

    @property
    def counts(self) -> Counter[int]:
        """The number of spans with each label."""
        return Counter(label for spans in self.spans.values() for _, _, label in spans)

    def label_tokens(
        self, question_id: str, number: int, ends: Sequence[int]
    ) -> Int8[np.ndarray, " tokens"]:
        """The label of each token, from where the tokens end in the answer's text. A token belongs
        to a span if they share a character, to a hallucinated one rather than to another; `OUTSIDE`
        if to none."""
        labels = np.full(len(ends), OUTSIDE, np.int8)
        stops = np.asarray(ends, np.int64)
        starts = np.concatenate([[0], stops])[:-1]
        for start, end, label in self._of(question_id, number):
            inside = (starts < end) & (stops > start)
            labels[inside] = np.maximum(labels[inside], label)
        return labels

    def digest(self, question_ids: Sequence[str], numbers: Sequence[int]) -> str:
        """A hash of the spans of these answers, in any order."""
        answers = zip(question_ids, numbers, strict=True)
        found = sorted((number, self._of(name, number)) for name, number in answers)
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def _of(self, question_id: str, number: int) -> list[tuple[int, int, int]]:
        name = question_id.strip()
        return self.spans.get((name, number)) or self.spans.get((name, None), [])


class _SpansTable(LabelTable):
    needs = f"{ID_COLUMN}, start, end and label"


def read_span_labels(path: Path) -> SpanLabels:
    """Read a CSV with `question_id`, `start`, `end` and `label` (correct, hallucinated or unsure;
    or 0, 1 and -1), and optionally `global_example_id`. Raises InputError naming the line."""
    table = _SpansTable(path)
    places = [table.place(name) for name in ("start", "end")]
    label_place = table.place("label")
    spans: dict[tuple[str, int | None], list[tuple[int, int, int]]] = {}
    for line, row in table.rows():
        key = table.parse_key(line, row)
        start, end = (table.parse_integer(line, row, place, "correct it") for place in places)
        label = _LABELS.get(row[label_place].strip().lower())
        if label is None or not 0 <= start < end < 1 << 31:
            raise InputError(
                f'{path}, line {line}: the span from {start} to {end} is labeled "'
                f'{row[label_place]:.40}": give a start of at least 0, a larger end, and one of '
                "correct, hallucinated and unsure."
            )
        spans.setdefault(key, []).append((start, end, label))
    return SpanLabels(path=path, spans=spans, sha256=hash_file(path))
