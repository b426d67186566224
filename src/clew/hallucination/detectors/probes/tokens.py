"""Scores from what the model thought of its own tokens; nothing is learnt but what an answer
without tokens gets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.detectors.probes.method import Features, Fitted, Scores


@dataclass(frozen=True, kw_only=True)
class EachAnswer:
    """A fixed score of each answer's own values. One without any says nothing either way: it
    gets the median of the training answers."""

    field: str
    score_one: Callable[[Any], float]
    without: float = 0.0
    parameters: int = 0

    def score(self, data: Features, split: str) -> Scores:
        answers = data.read(self.field, split)
        scores = (self.score_one(a) if a is not None and len(a) else self.without for a in answers)
        return np.fromiter(scores, np.float32, len(answers))


def learn_median(field: str, score_one: Callable[[Any], float], data: Features) -> Fitted:
    answers = data.read(field, "train")
    scores = [score_one(answer) for answer in answers if answer is not None and len(answer)]
    median = float(np.median(scores)) if scores else 0.0
    return Fitted(scorer=EachAnswer(field=field, score_one=score_one, without=median))


def learn_perplexity(data: Features) -> Fitted:
    return learn_median("token_logprobs", log_perplexity, data)


def learn_min_probability(data: Features) -> Fitted:
    return learn_median("token_logprobs", least_probability, data)


def learn_mean_entropy(data: Features) -> Fitted:
    return learn_median("token_entropies", mean_entropy, data)


def log_perplexity(logprobs: Sequence[float]) -> float:
    """Its logarithm: the same order, and no answer so far out that calibration sees only it."""
    return -float(np.mean(logprobs))


def least_probability(logprobs: Sequence[float]) -> float:
    """Minus the probability of the answer's least probable token."""
    return -float(np.exp(np.min(logprobs)))


def mean_entropy(entropies: Sequence[float]) -> float:
    return float(np.mean(entropies))
