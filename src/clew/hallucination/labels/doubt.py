"""How doubtful a label is, so that a person looks at the doubtful ones first: near misses, lists,
hedges, refusals, long answers, scores near the threshold, and a judge that disagrees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz

from clew.hallucination.labels.answers import JUDGED, REFUSED, LabeledAnswer
from clew.hallucination.labels.normalize import answer_words, normalize_answer

# From 0 to 1, by what stands between an answer and its label.
_DOUBTS = {
    "one of several": (0.9, "it names several"),
    "hedged": (0.9, "it hedges"),
    "contradicted": (0.85, "it contradicts or corrects itself"),
    "aside": (0.8, "it mentions an accepted answer beside another"),
    "other name": (0.8, "a longer name contains an accepted answer"),
    "denied": (0.75, "it denies an accepted answer"),
    "repeats the question": (0.7, "it repeats words of the question"),
    REFUSED: (0.6, "it declines to answer"),
    "same value": (0.5, "the same value in other words"),
    "same list": (0.5, "the same list in another order"),
    "declines": (0.4, "it declines to answer, which is accepted"),
}
# The similarity, 0 to 100, from which a text may be a spelling of an accepted answer.
_SIMILAR = 75
_LEAST_LETTERS = 4  # a shorter text is in many others by chance
_LARGE = 0.4
_EACH = 4  # examples of a kind
_MANY_WORDS = 40
_MOST_BY_LENGTH = 0.65


class Doubt(NamedTuple):
    """From 0 (none) to 1, and what it is about."""

    value: float
    about: str = ""

    @property
    def is_large(self) -> bool:
        """Whether a person should look at the answer."""
        return self.value >= _LARGE


def find_doubt(row: LabeledAnswer, threshold: float) -> Doubt:
    """The doubt about an answer's label; none if a person has corrected it."""
    if row.correction is not None:
        return Doubt(0.0)
    if row.reason.startswith(JUDGED):
        is_agreed = row.reason == JUDGED
        return Doubt(0.0) if is_agreed else Doubt(1.0, "the judge and the words disagree")
    if row.reason in _DOUBTS:
        return Doubt(*_DOUBTS[row.reason])
    if row.score is not None and 0 < row.score < 1:
        near = 1 - min(1.0, abs(row.score - threshold))
        return Doubt(near, f"its score of {row.score:.2f} is near {threshold:g}")
    return _doubt_length(row) if row.score else _doubt_similarity(row)


def _doubt_length(row: LabeledAnswer) -> Doubt:
    extra = len(answer_words(row.answer)) - len(answer_words(row.accepted_answer))
    if extra <= 0:
        return Doubt(0.0)
    return Doubt(min(_MOST_BY_LENGTH, extra / _MANY_WORDS), f"it has {extra} more words")


def _doubt_similarity(row: LabeledAnswer) -> Doubt:
    """A near miss has words in common with an accepted answer, or is spelled almost like it."""
    said, mine = normalize_answer(row.answer), {*answer_words(row.answer)}
    asked = {*answer_words(row.question)}
    best = Doubt(0.0)
    for alias in row.accepted_answers or (row.accepted_answer,):
        theirs = {*answer_words(alias)} - asked
        shared = len(theirs & mine) / max(1, len(theirs))
        likeness = fuzz.partial_ratio(normalize_answer(alias), said) if said else 0.0
        if shared:
            best = max(best, Doubt(0.5 + 0.4 * shared, f'it shares words with "{alias}"'))
        elif likeness >= _SIMILAR and len(alias) >= _LEAST_LETTERS:
            best = max(best, Doubt(likeness / 120, f'it is spelled almost like "{alias}"'))
    return best


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A few answers of each kind; the doubtful ones are not among the others."""

    correct: list[LabeledAnswer]
    hallucinated: list[LabeledAnswer]
    doubtful: list[LabeledAnswer]
    refused: list[LabeledAnswer] = field(default_factory=list)


def choose_examples(rows: Sequence[LabeledAnswer], threshold: float) -> Examples:
    """Correct and hallucinated answers from all over the store, and the doubtful ones."""
    correct, hallucinated, refused = (
        [row for row in rows if row.label(threshold) == label]
        for label in ("correct", "hallucinated", "refused")
    )
    doubtful = [*_doubtful(correct, threshold), *_doubtful(hallucinated, threshold)]
    shown = {row.global_example_id for row in doubtful}
    return Examples(
        correct=_spread([row for row in correct if row.global_example_id not in shown]),
        hallucinated=_spread([row for row in hallucinated if row.global_example_id not in shown]),
        doubtful=doubtful,
        refused=_spread(refused)[: _EACH // 2],
    )


def _spread(rows: Sequence[LabeledAnswer]) -> list[LabeledAnswer]:
    places = np.linspace(0, len(rows) - 1, min(_EACH, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def _doubtful(rows: Sequence[LabeledAnswer], threshold: float) -> list[LabeledAnswer]:
    doubts = [find_doubt(row, threshold).value for row in rows]
    order = sorted(range(len(rows)), key=lambda place: -doubts[place])[: _EACH // 2]
    return [rows[place] for place in order if doubts[place] > 0]
