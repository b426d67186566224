"""The text baseline: what the wording of question and answer alone says about the label. It does
not look at the model, so what it achieves does not count as hallucination detection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clew.hallucination.detectors.probes.fitting import STRENGTHS
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.metrics import auroc

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer

TEXTS = ("question", "answer")
_LENGTHS = (2, 4)  # of n-grams, in characters
_MOST_NGRAMS = 50_000  # of questions, and as many of answers
# Rows of TF-IDF have length 1, so weaker regularization than for standardized features is tried.
_STRENGTHS = tuple(1000 * strength for strength in STRENGTHS)


@dataclass(frozen=True, kw_only=True)
class TextScore:
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
