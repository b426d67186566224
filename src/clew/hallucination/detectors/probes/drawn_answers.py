"""Methods on several drawn answers. Semantic entropy: how much their meanings differ; a probe
predicts it from the states of one answer. Self-consistency: whether they agree with the answer:
what the model knows, it says again. The accepted answers and a second model are not used."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fitting import AnswerMeasure
from clew.hallucination.detectors.probes.method import Features, Fitted, method
from clew.hallucination.detectors.probes.states import STATES, Targets, fit_layers
from clew.hallucination.labels.normalize import answer_words

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
    targets = Targets(rows=rows, values=(entropies > limit).astype(np.int8))
    probes = fit_layers(data, range(data.layers), targets)
    best = max(probes, key=lambda probe: probe.auroc)
    chosen = {"layer": best.layer, "C": best.strength, "entropy": limit}
    return Fitted(scorer=best, chosen=chosen, by_layer=probes)


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
    leaders: list[tuple[str, ...]] = []
    sizes: list[int] = []
    for key in said:
        place = next((i for i, leader in enumerate(leaders) if occurs(leader, key)), None)
        if place is None:
            leaders.append(key)
            sizes.append(1)
        else:
            sizes[place] += 1
    return sizes


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


_TEXTS = ("samples", "question", "answer")
method("consistency", "Consistency of drawn answers", "no training", *_TEXTS)(
    partial(_learn, "disagreement")
)
method("selfcheck_ngram", "SelfCheckGPT (unigram)", "no training", *_TEXTS)(
    partial(_learn, "unigram")
)
