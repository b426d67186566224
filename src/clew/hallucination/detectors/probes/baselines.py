"""The cheapest methods: baselines that do not look at the model (answer length, question category),
and scores from the model's token probabilities. What these baselines achieve does not count as
hallucination detection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from clew.hallucination.detectors.probes.arrays import read_ragged
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


TokenStatistic = Literal["perplexity", "min_probability", "mean_entropy"]


@dataclass(frozen=True, kw_only=True)
class EachAnswer:
    """A fixed score of each answer's own token probabilities. An answer without tokens gets the
    median of the training answers."""

    statistic: TokenStatistic
    without: float = 0.0

    @property
    def parameters(self) -> int:
        return 0

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({_STATISTICS[self.statistic][0]})

    def score(self, data: Features, split: str) -> Scores:
        field, score_one = _STATISTICS[self.statistic]
        answers = read_ragged(data, field, split)
        scores = (score_one(a) if a is not None and len(a) else self.without for a in answers)
        return np.fromiter(scores, np.float32, len(answers))


def learn_statistic(statistic: TokenStatistic, data: Features) -> Fitted:
    field, score_one = _STATISTICS[statistic]
    answers = data.read(field, "train")
    scores = [score_one(answer) for answer in answers if answer is not None and len(answer)]
    median = float(np.median(scores)) if scores else 0.0
    return Fitted(scorer=EachAnswer(statistic=statistic, without=median))


def log_perplexity(logprobs: Sequence[float]) -> float:
    """The logarithm of perplexity: the same order, without the outliers that would dominate
    calibration."""
    return -float(np.mean(logprobs))


def least_probability(logprobs: Sequence[float]) -> float:
    """The negative probability of the answer's least probable token."""
    return -float(np.exp(np.min(logprobs)))


def mean_entropy(entropies: Sequence[float]) -> float:
    return float(np.mean(entropies))


_STATISTICS: dict[TokenStatistic, tuple[str, Callable[[Any], float]]] = {
    "perplexity": ("token_logprobs", log_perplexity),
    "min_probability": ("token_logprobs", least_probability),
    "mean_entropy": ("token_entropies", mean_entropy),
}
