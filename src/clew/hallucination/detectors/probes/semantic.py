"""Semantic entropy: how many different things the model says when it is asked several times.

Short answers are clustered by their words. The accepted answers are never looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.errors import InputError
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.hallucination.labels.normalize import answer_words

# Words that an English answer is wrapped in, and that say nothing.
_WRAPPING = "It's its is was are were in on of at to by this that there lies located"
_FILLERS = frozenset(answer_words(_WRAPPING))


@dataclass(frozen=True, kw_only=True)
class SemanticEntropy:
    """The entropy over clusters of samples; `without` is for answers that were not sampled."""

    without: float
    parameters: int = 0

    def score(self, data: Features, split: str) -> Scores:
        found = [self.without if e is None else e for e in _entropies(data, split)]
        return np.array(found, np.float32)


def learn_semantic_entropy(data: Features) -> Fitted:
    """Raises InputError when it is the same for all: then it tells nothing."""
    known = [entropy for entropy in _entropies(data, "train") if entropy is not None]
    if known and np.ptp(known) == 0:
        raise InputError(
            f"the samples of all {len(known):,} training answers are equally scattered (entropy "
            f"{known[0]:.2f}), so that it tells nothing: draw more of them, at a lower "
            f"`sample_temperature`, or ask for shorter answers."
        )
    return Fitted(scorer=SemanticEntropy(without=float(np.median(known)) if known else 0.0))


def cluster_samples(question: str, samples: Sequence[str]) -> list[int]:
    """The size of every cluster of answers to the question that mean the same.

    What an answer says is its normalised words less those of the question: "The capital of France
    is Paris." says "paris". Two say the same when these are equal, or when those of one occur in
    the other's in one run, as "austen" in "jane austen". The shortest are looked at first, so
    that the order of the samples does not matter.
    """
    asked = frozenset(answer_words(question))
    said = sorted((_key(asked, sample) for sample in samples), key=lambda key: (len(key), key))
    leaders: list[tuple[str, ...]] = []
    sizes: list[int] = []
    for key in said:
        place = next((i for i, leader in enumerate(leaders) if _occurs(leader, key)), None)
        if place is None:
            leaders.append(key)
            sizes.append(1)
        else:
            sizes[place] += 1
    return sizes


def cluster_entropy(sizes: Sequence[int]) -> float:
    shares = np.array(sizes) / sum(sizes)
    return float(-(shares * np.log(shares)).sum())


def _entropies(data: Features, split: str) -> list[float | None]:
    """None where there is no sample."""
    asked, answers = data.read("question", split), data.read("samples", split)
    return [
        cluster_entropy(cluster_samples(question or "", samples)) if samples else None
        for question, samples in zip(asked, answers, strict=True)
    ]


def _key(asked: frozenset[str], sample: str) -> tuple[str, ...]:
    """An answer in the question's own words, as to "a cat or a dog?", says all of them."""
    words = answer_words(sample or "")
    return tuple(w for w in words if w not in asked and w not in _FILLERS) or tuple(words)


def _occurs(short: tuple[str, ...], long: tuple[str, ...]) -> bool:
    """Whether the words of one are a run of the other's; no words are only in no words."""
    if not short:
        return not long
    starts = range(len(long) - len(short) + 1)
    return any(long[start : start + len(short)] == short for start in starts)
