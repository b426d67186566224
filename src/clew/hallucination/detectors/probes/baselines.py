"""The cheapest methods: baselines that do not look at the model (answer length, question category),
and scores from the model's token probabilities. What these baselines achieve does not count as
hallucination detection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.detectors.probes.fitting import Linear, fit_path, standardize
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores

# Pseudo-counts at the overall rate for every category, so that small ones have little influence.
_SMOOTHING = 5.0


@dataclass(frozen=True, kw_only=True)
class LengthScore:
    """A score that is linear in the number of answer tokens."""

    linear: Linear

    @property
    def parameters(self) -> int:
        return self.linear.parameters

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(_count_tokens(data, split))


@dataclass(frozen=True, kw_only=True)
class CategoryRate:
    """The share of hallucinated answers among the training answers of the category."""

    rates: dict[str | None, float]
    overall: float

    @property
    def parameters(self) -> int:
        return len(self.rates) + 1

    def score(self, data: Features, split: str) -> Scores:
        categories = data.read("category", split)
        return np.array([self.rates.get(name, self.overall) for name in categories], np.float32)


def learn_length(data: Features) -> Fitted:
    """Fit the length baseline. A single feature needs no regularization, so the weakest is used;
    the sign is learned in training."""
    lengths = _count_tokens(data, "train")
    scale = standardize(lengths, "token_logprobs")
    _, linear = list(fit_path(lengths, data.labels["train"]))[-1]
    return Fitted(scorer=LengthScore(linear=scale.undo(linear)))


def learn_category(data: Features) -> Fitted:
    labels = data.labels["train"]
    overall = float(labels.mean())
    of_category: dict[str | None, list[int]] = {}
    for name, label in zip(data.read("category", "train"), labels.tolist(), strict=True):
        of_category.setdefault(name, []).append(label)
    rates = {
        name: (sum(found) + _SMOOTHING * overall) / (len(found) + _SMOOTHING)
        for name, found in of_category.items()
    }
    return Fitted(scorer=CategoryRate(rates=rates, overall=overall))


def _count_tokens(data: Features, split: str) -> np.ndarray:
    counts = [len(answer) for answer in data.read("token_logprobs", split)]
    return np.array(counts, np.float32).reshape(-1, 1)


@dataclass(frozen=True, kw_only=True)
class EachAnswer:
    """A fixed score of each answer's own values. An answer without values gets the median of the
    training answers."""

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
    """The logarithm of perplexity: the same order, without the outliers that would dominate
    calibration."""
    return -float(np.mean(logprobs))


def least_probability(logprobs: Sequence[float]) -> float:
    """The negative probability of the answer's least probable token."""
    return -float(np.exp(np.min(logprobs)))


def mean_entropy(entropies: Sequence[float]) -> float:
    return float(np.mean(entropies))
