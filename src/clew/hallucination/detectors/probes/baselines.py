"""The cheapest methods: baselines that do not look at the model (answer length, question category,
the wording of question and answer), and scores from the model's token probabilities. What these
baselines achieve does not count as hallucination detection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clew.hallucination.detectors.probes.fitting import (
    STRENGTHS,
    AnswerMeasure,
    LinearScorer,
    fit_path,
    read_ragged,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, Scores, method
from clew.metrics import auroc

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer


# Pseudo-counts at the overall rate for every category, so that small ones have little influence.
_SMOOTHING = 5.0


@dataclass(frozen=True, kw_only=True)
class LengthScore(LinearScorer):
    """A score that is linear in the number of answer tokens."""

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(_count_tokens(data, split))


@dataclass(frozen=True, kw_only=True)
class CategoryRate(Scorer):
    """The share of hallucinated answers among the training answers of the category."""

    rates: dict[str | None, float]
    overall: float

    @property
    def parameters(self) -> int:
        return len(self.rates) + 1

    def score(self, data: Features, split: str) -> Scores:
        categories = data.read("category", split)
        return np.array([self.rates.get(name, self.overall) for name in categories], np.float32)


@method("length", "Answer length", "baseline", "token_logprobs")
def learn_length(data: Features) -> Fitted:
    """Fit the length baseline. A single feature needs no regularization, so the weakest is used;
    the sign is learned in training."""
    lengths = _count_tokens(data, "train")
    scale = standardize(lengths, "token_logprobs")
    _, linear = list(fit_path(lengths, data.labels["train"]))[-1]
    return Fitted(scorer=LengthScore(linear=scale.undo(linear)))


@method("category", "Question category", "baseline", "category")
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
class EachAnswer(AnswerMeasure, kind="token_probabilities"):
    """A fixed score of each answer's own token probabilities."""

    statistic: TokenStatistic

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({_STATISTICS[self.statistic][0]})

    def find(self, data: Features, split: str) -> list[float | None]:
        field, score_one, _ = _STATISTICS[self.statistic]
        answers = read_ragged(data, field, split)
        return [score_one(a) if a is not None and len(a) else None for a in answers]


def log_perplexity(logprobs: Sequence[float]) -> float:
    """The logarithm of perplexity: the same order, without the outliers that would dominate
    calibration."""
    return -float(np.mean(logprobs))


def least_probability(logprobs: Sequence[float]) -> float:
    """The negative probability of the answer's least probable token."""
    return -float(np.exp(np.min(logprobs)))


def learn_statistic(statistic: TokenStatistic, data: Features) -> Fitted:
    return EachAnswer(statistic=statistic).learn(data)


_STATISTICS: dict[TokenStatistic, tuple[str, Callable[[Any], float], str]] = {
    "perplexity": ("token_logprobs", log_perplexity, "Perplexity"),
    "min_probability": ("token_logprobs", least_probability, "Minimum token probability"),
    "mean_entropy": ("token_entropies", lambda of: float(np.mean(of)), "Mean token entropy"),
}
for _name, (_field, _, _title) in _STATISTICS.items():
    method(_name, _title, "no training", _field)(partial(learn_statistic, _name))


TEXTS = ("question", "answer")
_LENGTHS = (2, 4)  # of n-grams, in characters
_MOST_NGRAMS = 50_000  # of questions, and as many of answers
# Rows of TF-IDF have length 1, so weaker regularization than for standardized features is tried.
_STRENGTHS = tuple(1000 * strength for strength in STRENGTHS)


@dataclass(frozen=True, kw_only=True)
class TextScore(Scorer):
    """A linear score of the character n-grams of question and answer, each with its own weights."""

    ngrams: Sequence["TfidfVectorizer"]
    weights: np.ndarray
    bias: float

    @property
    def parameters(self) -> int:
        return len(self.weights) + 1

    def score(self, data: Features, split: str) -> Scores:
        texts = zip(self.ngrams, _read_texts(data, split), strict=True)
        found = _join([ngrams.transform(of) for ngrams, of in texts]) @ self.weights
        return (found + self.bias).astype(np.float32)


@method("text", "Question and answer text", "baseline", *TEXTS)
def learn_text(data: Features) -> Fitted:
    """Fit the text baseline; the regularization strength is chosen on validation."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    texts = _read_texts(data, "train")
    ngrams = [_count_ngrams(of) for of in texts]
    matrix = _join([one.transform(of) for one, of in zip(ngrams, texts, strict=True)])
    fitted = {}
    for strength in _STRENGTHS:
        machine = LogisticRegression(C=strength, class_weight="balanced", max_iter=200)
        machine.fit(matrix, data.labels["train"])
        fitted[strength] = TextScore(
            ngrams=ngrams, weights=machine.coef_[0], bias=float(machine.intercept_[0])
        )
    labels = data.labels["validation"]
    best = max(fitted, key=lambda one: auroc(labels, fitted[one].score(data, "validation")))
    return Fitted(scorer=fitted[best], chosen={"C": best})


def _count_ngrams(texts: Sequence[str]) -> "TfidfVectorizer":
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

    made = TfidfVectorizer(
        analyzer="char_wb", ngram_range=_LENGTHS, max_features=_MOST_NGRAMS, sublinear_tf=True
    )
    return made.fit(texts)


def _join(parts: Sequence["csr_matrix"]) -> "csr_matrix":
    from scipy.sparse import hstack

    return hstack(parts, format="csr")


def _read_texts(data: Features, split: str) -> list[list[str]]:
    return [[text or "" for text in data.read(name, split)] for name in TEXTS]
