"""Self-consistency: whether other answers that were drawn for the question agree with the answer.
What the model knows, it says again; what it makes up differs from draw to draw. No second model.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.hallucination.detectors.probes.semantic import content_words, occurs
from clew.hallucination.labels.normalize import answer_words

Measure = Literal["disagreement", "unigram"]


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """How much the drawn answers differ from the answer; `without` is the score of an answer for
    which none were drawn."""

    measure: Measure
    without: float

    @property
    def parameters(self) -> int:
        return 0

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"samples", "question", "answer"})

    def score(self, data: Features, split: str) -> Scores:
        found = _measure_split(self.measure, data, split)
        return np.array([self.without if one is None else one for one in found], np.float32)


def learn_consistency(measure: Measure, data: Features) -> Fitted:
    """Fit a measure of consistency. Raises InputError if it is the same for all answers and so
    carries no information."""
    known = [one for one in _measure_split(measure, data, "train") if one is not None]
    if not known or np.ptp(known) == 0:
        raise InputError(
            f"all {len(known):,} training answers with drawn answers agree with them equally, so "
            "this carries no information: draw more answers, or use another `draw_temperature`."
        )
    return Fitted(scorer=Consistency(measure=measure, without=float(np.median(known))))


def disagreement(question: str, answer: str, samples: Sequence[str]) -> float:
    """The share of drawn answers that mean something else: the content of neither is a contiguous
    part of the other's, as "austen" of "jane austen". The accepted answers are not used."""
    asked = frozenset(answer_words(question))
    said = content_words(asked, answer)
    others = (content_words(asked, sample) for sample in samples)
    return float(np.mean([not (occurs(said, one) or occurs(one, said)) for one in others]))


def rarest_word(question: str, answer: str, samples: Sequence[str]) -> float:
    """SelfCheckGPT's unigram score: the largest negative log-probability of a word of the answer,
    under a unigram model of the words of all drawn answers and the answer. Only words count that
    the question does not contain."""
    asked = frozenset(answer_words(question))
    said = content_words(asked, answer)
    counts = Counter(said)
    for sample in samples:
        counts.update(content_words(asked, sample))
    if not said:  # nothing was said, so as unlikely as a word that no draw repeats
        return float(np.log(counts.total() + 1))
    return float(np.log(counts.total() / min(counts[word] for word in said)))


_MEASURES: dict[Measure, Callable[[str, str, Sequence[str]], float]] = {
    "disagreement": disagreement,
    "unigram": rarest_word,
}


def _measure_split(measure: Measure, data: Features, split: str) -> list[float | None]:
    """None if no answers were drawn for the question."""
    texts = (data.read(name, split) for name in ("question", "answer", "samples"))
    return [
        _MEASURES[measure](question or "", answer or "", samples) if samples else None
        for question, answer, samples in zip(*texts, strict=True)
    ]
