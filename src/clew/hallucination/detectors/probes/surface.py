"""Baselines that see nothing of the model: how long the answer is, and of which category the
question. What they reach is not detection.
"""

from dataclasses import dataclass

import numpy as np

from clew.hallucination.detectors.probes.logistic import Linear, fit_path, standardize
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores

# Answers that every category is given at the overall rate, so that a small one says little.
_SMOOTHING = 5.0


@dataclass(frozen=True, kw_only=True)
class LengthScore:
    """Linear in the number of answer tokens."""

    linear: Linear

    @property
    def parameters(self) -> int:
        return self.linear.parameters

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(_count_tokens(data, split))


@dataclass(frozen=True, kw_only=True)
class CategoryRate:
    """The share of made-up answers among the training answers of the category."""

    rates: dict[str | None, float]
    overall: float

    @property
    def parameters(self) -> int:
        return len(self.rates) + 1

    def score(self, data: Features, split: str) -> Scores:
        categories = data.read("category", split)
        return np.array([self.rates.get(name, self.overall) for name in categories], np.float32)


def learn_length(data: Features) -> Fitted:
    """One number needs no penalty: the weakest is taken. The sign is learnt in training."""
    lengths = _count_tokens(data, "train")
    scale = standardize(lengths, "token_logprobs")
    _, linear = list(fit_path(lengths, data.labels["train"]))[-1]
    return Fitted(scorer=LengthScore(linear=scale.undo(linear)))


def learn_category(data: Features) -> Fitted:
    labels = data.labels["train"]
    overall = float(labels.mean())
    made_up: dict[str | None, list[int]] = {}
    for name, label in zip(data.read("category", "train"), labels.tolist(), strict=True):
        made_up.setdefault(name, []).append(label)
    rates = {
        name: (sum(found) + _SMOOTHING * overall) / (len(found) + _SMOOTHING)
        for name, found in made_up.items()
    }
    return Fitted(scorer=CategoryRate(rates=rates, overall=overall))


def _count_tokens(data: Features, split: str) -> np.ndarray:
    counts = [len(answer) for answer in data.read("token_logprobs", split)]
    return np.array(counts, np.float32).reshape(-1, 1)
