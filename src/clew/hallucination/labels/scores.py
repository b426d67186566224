"""Read files of scores and of span labels, written by `clew label` or by other means, and apply
them."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int8

from clew.base.errors import InputError
from clew.hallucination.labels.answers import Label
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
    """The score of each answer, from 0 (hallucinated) to 1 (correct), or why it is in no class: the
    model refused, or a person excluded it. Keys are (question_id, global_example_id) if the file
    distinguishes answers to the same question, else question ids. `answers` has the scored texts if
    `clew label` wrote the file."""

    path: Path
    labels: dict[Any, float | SetAside]
    has_examples: bool
    answers: dict[Any, str]
    notes: tuple[str, ...]
    sha256: str

    def find(
        self, question_ids: Sequence[str], example_ids: Sequence[int]
    ) -> list[float | SetAside | None]:
        """What the file says of each answer, None if it has none."""
        names = [name.strip() for name in question_ids]
        keys = zip(names, map(int, example_ids), strict=True) if self.has_examples else names
        return [self.labels.get(key) for key in keys]


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
    labels: dict[Any, float | SetAside] = {}
    answers: dict[Any, str] = {}
    lines: dict[Any, int] = {}
    clashes, repeated = [], 0
    for line, row in table.rows():
        name, number = table.parse_key(line, row)
        key = name if number is None else (name, number)
        label = _read_label(table.parse_label(line, row), turned)
        if table.answer_place is not None:
            answers[key] = row[table.answer_place]
        first = lines.setdefault(key, line)
        before = labels.setdefault(key, label)
        repeated += first != line
        if before != label:
            texts = [f"{one:g}" if isinstance(one, float) else one for one in (before, label)]
            shown = name if number is None else f"{name} (example {number})"
            clashes.append(f"{shown} (lines {first} and {line}: {texts[0]} and {texts[1]})")
    _refuse_scores(table, len(labels), clashes)
    return Scores(
        path=table.path,
        labels=labels,
        has_examples=table.example_place is not None,
        answers=answers,
        notes=_describe_reading(table, turned, repeated),
        sha256=hash_file(table.path),
    )


def _read_label(label: Label | float, turned: bool) -> float | SetAside:
    if isinstance(label, float):
        return 1.0 - label if turned else label
    return label if label in ("refused", "excluded") else float(label == "correct")


def _refuse_scores(table: ScoresTable, found: int, clashes: Sequence[str]) -> None:
    if not found:
        raise InputError(
            f"{table.path} has a header but no scores: label the store with ",
            label_into(table.path),
            ".",
        )
    if clashes:
        apart = f", or add a column {EXAMPLE_COLUMN} if a question was answered several times"
        raise InputError(
            f"{table.path} has different scores for the same answer: {_some(clashes, '; ')}. Keep "
            f"one line per answer{apart if table.example_place is None else ''}."
        )


def _describe_reading(table: ScoresTable, turned: bool, repeated: int) -> tuple[str, ...]:
    notes, column = [], table.score_column
    if turned:
        notes.append(
            f"{table.path}: a higher {column} is taken to mean more likely hallucinated, so the "
            f"score is 1 - {column}"
        )
    if repeated:
        lines = "1 line repeats" if repeated == 1 else f"{repeated:,} lines repeat"
        notes.append(f"{table.path}: {lines} an earlier score")
    return tuple(notes)


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
    found = scores.find(question_ids, example_ids)
    values = np.array([x if isinstance(x, float) else np.nan for x in found], np.float32)
    declined, excluded = (np.array([x == why for x in found], bool) for why in get_args(SetAside))
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
    theirs, mine = next(iter(scores.labels)), question_ids[0]
    if isinstance(theirs, tuple):
        theirs, mine = f"{theirs[0]}, example {theirs[1]}", f"{mine}, example {example_ids[0]}"
    return (
        f"{scores.path} has no score for any answer in the store: the file has IDs like "
        f'"{theirs}", the store has IDs like "{mine}". Give the file that belongs to the store, '
        'or create one with "clew label".'
    )


def _shared_notes(scores: Scores, question_ids: Sequence[str]) -> tuple[str, ...]:
    repeated = len(question_ids) - len(set(question_ids))
    if scores.has_examples or not repeated:
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
        for start, end, label in self.of(question_id, number):
            inside = (starts < end) & (stops > start)
            labels[inside] = np.maximum(labels[inside], label)
        return labels

    def digest(self, question_ids: Sequence[str], numbers: Sequence[int]) -> str:
        """A hash of the spans of these answers, in any order."""
        answers = zip(question_ids, numbers, strict=True)
        found = sorted((number, self.of(name, number)) for name, number in answers)
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def of(self, question_id: str, number: int) -> list[tuple[int, int, int]]:
        """(start, end, label) of the spans of an answer."""
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
