"""Which labelled answers a person should look at: some right, some wrong, the most doubtful."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.hallucination.labels.methods import token_f1
from clew.hallucination.labels.normalize import answer_words
from clew.hallucination.labels.rows import LabelledAnswer

_EACH = 4


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A few answers of each kind; the doubtful ones are none of the others."""

    right: list[LabelledAnswer]
    wrong: list[LabelledAnswer]
    doubtful: list[LabelledAnswer]


def choose_examples(rows: Sequence[LabelledAnswer], threshold: float) -> Examples:
    """Right and wrong ones from all over the store, and those closest to the other side."""
    right = [row for row in rows if row.score >= threshold]
    wrong = [row for row in rows if row.score < threshold]
    doubtful = [*_doubtful(right, threshold), *_doubtful(wrong, threshold)]
    shown = {row.global_example_id for row in doubtful}
    return Examples(
        right=_spread([row for row in right if row.global_example_id not in shown]),
        wrong=_spread([row for row in wrong if row.global_example_id not in shown]),
        doubtful=doubtful,
    )


def _spread(rows: Sequence[LabelledAnswer]) -> list[LabelledAnswer]:
    places = np.linspace(0, len(rows) - 1, min(_EACH, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def _doubtful(rows: Sequence[LabelledAnswer], threshold: float) -> list[LabelledAnswer]:
    """Scores in between are doubtful near the threshold; plain right or wrong ones by words."""
    measure = _word_doubt if all(row.score in (0, 1) for row in rows) else None
    doubts = [measure(row) if measure else 1 - abs(row.score - threshold) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: -doubts[place])[: _EACH // 2]
    return [rows[place] for place in order if doubts[place] > 0]


def _word_doubt(row: LabelledAnswer) -> float:
    """Right: the words besides the accepted ones. Wrong: how much of the wording it has."""
    if row.score:
        return len(answer_words(row.answer)) - len(answer_words(row.accepted_answer))
    return token_f1(row.answer, row.accepted_answer)
