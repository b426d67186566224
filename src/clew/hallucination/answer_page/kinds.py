"""Which answers of a store are right and which are made up, and which two to put side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int64
from rapidfuzz import fuzz, process

from clew.errors import InputError
from clew.hallucination.answer_page.store import iter_shards
from clew.hallucination.labels import read_scores, refuse_other_answers, require_scores
from clew.hallucination.traces import TraceBatchLoader

Kind = Literal["right", "made up"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All answers of a store by number, each with its score (NaN: none) and what was asked."""

    numbers: Int64[np.ndarray, " answers"]
    scores: Float32[np.ndarray, " answers"]
    questions: list[str]
    categories: list[str | None]
    threshold: float
    notes: tuple[str, ...]

    @property
    def made_up(self) -> np.ndarray:
        # Both in float32, as `clew preprocess` compares them: 0.7 is not below 0.7.
        return self.scores < np.float32(self.threshold)

    @property
    def right(self) -> np.ndarray:
        return self.scores >= np.float32(self.threshold)

    def of(self, number: int) -> tuple[Kind | None, float | None]:
        """The kind and the score of one answer, None where the file has no score of it."""
        place = self._place(number)
        score = float(self.scores[place])
        if np.isnan(score):
            return None, None
        return ("made up" if self.made_up[place] else "right"), score

    def numbers_of(self, kind: Kind) -> Int64[np.ndarray, " answers"]:
        return self.numbers[self.made_up if kind == "made up" else self.right]

    def find_counterpart(self, number: int) -> int | None:
        """The answer of the other kind whose question is most like this one's: of the same
        category if there is one, and then by its wording. None when there is no other kind."""
        kind, _ = self.of(number)
        if kind is None:
            return None
        place = self._place(number)
        others = np.flatnonzero(self.right if kind == "made up" else self.made_up)
        same = [at for at in others.tolist() if self.categories[at] == self.categories[place]]
        candidates = same or others.tolist()
        if not candidates:
            return None
        texts = [self.questions[at] for at in candidates]
        best = process.extractOne(self.questions[place], texts, scorer=fuzz.ratio)
        return int(self.numbers[candidates[best[2]]])

    def _place(self, number: int) -> int:
        return int(np.flatnonzero(self.numbers == number)[0])


def judge_answers(loader: TraceBatchLoader, scores_file: Path, threshold: float) -> Judged:
    """Join a store with its scores file; raises InputError when they do not belong together."""
    if not 0 < threshold <= 1:
        raise InputError(
            "give a number above 0 and at most 1: scores go from 0 (wrong) to 1 (right), 0.5 is "
            "usual.",
            setting="score_threshold",
            value=threshold,
        )
    scores = read_scores(scores_file)
    names = ("global_example_id", "question_id", "answer", "question", "category")
    numbers, question_ids, answers, questions, categories = _read_columns(loader, names)
    refuse_other_answers(scores, question_ids, numbers, answers)
    matched = require_scores(scores, question_ids, numbers, allow_missing=True)
    missing = int(matched.missing.sum())
    without = (f"{missing:,} of {len(numbers):,} answers have no score in {scores_file}",)
    return Judged(
        numbers=np.array(numbers, np.int64),
        scores=matched.values,
        questions=[text or "" for text in questions],
        categories=categories,
        threshold=threshold,
        notes=(*scores.notes, *matched.notes, *(without if missing else ())),
    )


def _read_columns(loader: TraceBatchLoader, names: Sequence[str]) -> list[list]:
    columns: list[list] = [[] for _ in names]
    for shard in iter_shards(loader):
        for column, name in zip(columns, names, strict=True):
            column += shard.read_column(name).to_pylist()
    return columns
