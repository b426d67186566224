"""The cheapest methods: baselines that do not look at the model (answer length, question category,
the wording of question and answer, words that the source does not have), whose results do not count
as hallucination detection; scores from the model's token probabilities; and how much several drawn
answers differ."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fitting import (
    STRENGTHS,
    AnswerMeasure,
    LinearScorer,
    fit_path,
    read_ragged,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, Scores, method
from clew.hallucination.detectors.probes.states import STATES, choose_layer, fit_layers
from clew.hallucination.labels.normalize import answer_words, singular
from clew.hallucination.traces.schema import CONTEXT
from clew.metrics.ranking import auroc

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer


# Pseudo-counts at the overall rate for every category, so that small ones have little influence.
_SMOOTHING = 5.0


@dataclass(frozen=True, kw_only=True)
class NumbersScore(LinearScorer):
    """A score that is linear in one or two numbers per answer, `[answers, numbers]`."""

    count: Callable[[Features, str], np.ndarray]

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(self.count(data, split))


def _learn_numbers(
    count: Callable[[Features, str], np.ndarray], field: str, data: Features
) -> Fitted:
    """So few features need no regularization, so the weakest is used; their signs are learned in
    training."""
    numbers = count(data, "train")
    scale = standardize(numbers, field)
    _, linear = list(fit_path(numbers, data.labels["train"]))[-1]
    return Fitted(scorer=NumbersScore(count=count, linear=scale.undo(linear)))


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


method("length", "Answer length", "baseline", "token_logprobs")(
    partial(_learn_numbers, _count_tokens, "token_logprobs")
)


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
        return [float(score_one(a)) if a is not None and len(a) else None for a in answers]


def learn_statistic(statistic: TokenStatistic, data: Features) -> Fitted:
    return EachAnswer(statistic=statistic).learn(data)


_STATISTICS: dict[TokenStatistic, tuple[str, Callable[[Any], float], str]] = {
    # Its logarithm: the same order, without the outliers that would dominate calibration.
    "perplexity": ("token_logprobs", lambda of: -np.mean(of), "Perplexity"),
    "min_probability": (
        *("token_logprobs", lambda of: -np.exp(np.min(of)), "Minimum token probability"),
    ),
    "mean_entropy": ("token_entropies", np.mean, "Mean token entropy"),
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


_SOURCED = ("question", CONTEXT, "answer")


def _share_unsupported(data: Features, split: str) -> np.ndarray:
    """Of each answer, the shares of its content words and of its numbers that neither its source
    nor its question contains; 0 without any."""
    rows = zip(*(data.read(name, split) for name in _SOURCED), strict=True)
    return np.array([_unsupported(*(text or "" for text in row)) for row in rows], np.float32)


method("source_words", "Words not in the source", "baseline", *_SOURCED)(
    partial(_learn_numbers, _share_unsupported, CONTEXT)
)


def _unsupported(question: str, context: str, answer: str) -> tuple[float, float]:
    source = _known_words(question, context)
    words = [singular(word) for word in answer_words(answer) if word not in _FILLERS]
    numbers = [word for word in words if any(map(str.isdigit, word))]
    others = [word for word in words if word not in numbers]
    shares = [
        sum(word not in source for word in some) / max(1, len(some)) for some in (others, numbers)
    ]
    return shares[0], shares[1]


def find_new_words(question: str, context: str, words: Sequence[str]) -> np.ndarray:
    """Whether each word of an answer is a content word that neither source nor question has."""
    source = _known_words(question, context)
    parts = (
        [singular(part) for part in answer_words(word) if part not in _FILLERS] for word in words
    )
    return np.array([not source.issuperset(some) for some in parts], np.float32)


def _known_words(question: str, context: str) -> set[str]:
    return {singular(word) for word in (*answer_words(question), *answer_words(context))}


# Filler words of English answers.
_WRAPPING = "It's its is was are were in on of at to by this that there lies located"
_DRAWN = ("samples", "question")
_FILLERS = frozenset(answer_words(_WRAPPING))


@dataclass(frozen=True, kw_only=True)
class SemanticEntropy(AnswerMeasure, kind="semantic_entropy"):
    """The entropy over the clusters of sampled answers."""

    reads = _DRAWN

    def find(self, data: Features, split: str) -> list[float | None]:
        """None for an answer without sampled answers."""
        asked, answers = data.read("question", split), data.read("samples", split)
        return [
            cluster_entropy(cluster_samples(question or "", samples)) if samples else None
            for question, samples in zip(asked, answers, strict=True)
        ]


@method("semantic_entropy", "Semantic entropy", "no training", *_DRAWN)
def learn_semantic_entropy(data: Features) -> Fitted:
    """Fit semantic entropy. Raises InputError if the entropy is the same for all answers and so
    carries no information."""
    return SemanticEntropy().learn(data, _refuse_constant)


@method(*("semantic_entropy_probe", "Semantic entropy probe", "probe", STATES), learns_from=_DRAWN)
def learn_entropy_probe(data: Features) -> Fitted:
    """Fit a semantic entropy probe at the best layer: it is trained on whether the entropy of the
    training answers is high, not on their labels. Raises InputError as for semantic entropy."""
    found = SemanticEntropy().find(data, "train")
    rows = np.array([row for row, one in enumerate(found) if one is not None], np.int64)
    entropies = np.array([one for one in found if one is not None])
    if not len(rows):
        raise InputError(
            'no training answer has drawn answers: run "clew extract" with `draws=10`.'
        )
    _refuse_constant(entropies)
    limit = split_entropies(entropies)
    targets = rows, (entropies > limit).astype(np.int8)
    return choose_layer(fit_layers(data, range(data.layers), targets), entropy=limit)


def split_entropies(entropies: np.ndarray) -> float:
    """The limit between low and high entropies: with the smallest squared distances to the means of
    both groups (Kossen et al., section 4)."""

    def spread(limit: float) -> float:
        groups = (entropies[entropies <= limit], entropies[entropies > limit])
        return sum(float(((group - group.mean()) ** 2).sum()) for group in groups)

    *limits, _ = np.unique(entropies)  # above the largest there is nothing
    return float(min(limits, key=spread))


def _refuse_constant(entropies: Sequence[float] | np.ndarray) -> None:
    if len(entropies) and np.ptp(entropies) == 0:
        raise InputError(
            f"the entropy is the same for all {len(entropies):,} training answers "
            f"({entropies[0]:.2f}), so it carries no information: draw more answers, use a lower "
            "`draw_temperature`, or ask for shorter answers."
        )


def cluster_samples(question: str, samples: Sequence[str]) -> list[int]:
    """The size of every cluster of answers to the question that mean the same.

    The content of an answer is its normalized words without those of the question: "The capital of
    France is Paris." becomes "paris". Two answers are equivalent if these are equal, or if those of
    one are a contiguous part of the other's, as "austen" in "jane austen". The shortest are
    compared first, so that the order of the draws does not matter.
    """
    asked = frozenset(answer_words(question))
    said = sorted(
        (content_words(asked, sample) for sample in samples), key=lambda key: (len(key), key)
    )
    return count_clusters(len(said), lambda first, row: occurs(said[first], said[row]))


def count_clusters(answers: int, means_same: Callable[[int, int], Any]) -> list[int]:
    """The sizes of the clusters: each answer, by its number, joins the first cluster whose first
    answer means the same."""
    sizes: dict[int, int] = {}
    for row in range(answers):
        first = next((one for one in sizes if means_same(one, row)), row)
        sizes[first] = sizes.get(first, 0) + 1
    return [*sizes.values()]


def cluster_entropy(sizes: Sequence[int]) -> float:
    shares = np.array(sizes) / sum(sizes)
    return float(-(shares * np.log(shares)).sum())


def content_words(asked: frozenset[str], sample: str) -> tuple[str, ...]:
    """The content words of a sampled answer. One that uses only the question's words (as for "a cat
    or a dog?") keeps them all."""
    words = answer_words(sample or "")
    return tuple(w for w in words if w not in asked and w not in _FILLERS) or tuple(words)


def occurs(short: tuple[str, ...], long: tuple[str, ...]) -> bool:
    """Whether the words of one are a contiguous part of the other's; empty only matches empty."""
    if not short:
        return not long
    starts = range(len(long) - len(short) + 1)
    return any(long[start : start + len(short)] == short for start in starts)


Measure = Literal["disagreement", "unigram"]


@dataclass(frozen=True, kw_only=True)
class Consistency(AnswerMeasure, kind="consistency"):
    """How much the drawn answers differ from the answer."""

    measure: Measure
    reads = ("samples", "question", "answer")

    def find(self, data: Features, split: str) -> list[float | None]:
        """None if no answers were drawn for the question."""
        texts = (data.read(name, split) for name in ("question", "answer", "samples"))
        return [
            _MEASURES[self.measure](question or "", answer or "", samples) if samples else None
            for question, answer, samples in zip(*texts, strict=True)
        ]


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


def _learn(measure: Measure, data: Features) -> Fitted:
    """Fit a measure of consistency. Raises InputError if it is the same for all answers and so
    carries no information."""

    def refuse(known: Sequence[float]) -> None:
        if not known or np.ptp(known) == 0:
            raise InputError(
                f"all {len(known):,} training answers with drawn answers agree with them equally, "
                "so this carries no information: draw more answers, or use another "
                "`draw_temperature`."
            )

    return Consistency(measure=measure).learn(data, refuse)


method("consistency", "Consistency of drawn answers", "no training", *Consistency.reads)(
    partial(_learn, "disagreement")
)
method("selfcheck_ngram", "SelfCheckGPT (unigram)", "no training", *Consistency.reads)(
    partial(_learn, "unigram")
)
