"""Adaptation of a detector to other answers with few labels, on one vector per answer: the score
of the detector's method, statistics of the token probabilities, and states of middle layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float32, Float64, Int

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.attention import FEW
from clew.hallucination.detectors.probes.fitting import Array, Linear, doubled, library, to_numpy
from clew.hallucination.detectors.probes.fusion import CONFIDENCE, read_confidence
from clew.hallucination.detectors.probes.gated import Gaussian
from clew.hallucination.detectors.probes.method import Features
from clew.hallucination.detectors.probes.robust import unit
from clew.metrics.calibration import PlattScale, expected_calibration_error
from clew.metrics.measures import best_threshold
from clew.metrics.ranking import auroc, bootstrap_auroc, compare_paired

_STATES = ("sequence", "state_mean")  # of the last answer token, and the mean of all
VECTOR_FIELDS = frozenset((*_STATES, *CONFIDENCE))
# States in a vector: of larger models, evenly spaced dimensions.
_MOST_STATES = 1 << 14
_FIRST_STATE = 6  # behind the score and five statistics of the token probabilities
Vectors = Float32[np.ndarray, "answers numbers"]
Labels = Int[np.ndarray, " answers"]  # 1 is hallucinated, 0 correct
UNLABELED = -1

LEAST_LABELS = 20
# With fewer of a class, the direction between the classes is noise.
_LEAST_PER_CLASS = 5
# Of states whose mean squared length is 1, and labels of the rarer class with which states weigh
# half. Chosen over the sets of benchmarks/adapt.py, without those that are only tested.
_RIDGE, _HALF_WEIGHT = 0.5, 10
_FOLDS, _ROUNDS = 5, 4
_WITHIN = 0.975  # the share of answers that are familiar


def build_vectors(scores: Float32[np.ndarray, " answers"], data: Features, split: str) -> Vectors:
    """Everything that adaptation needs of each answer, `scores` being those of the detector's
    method. They are not calibrated, so that vectors stay valid when the detector is calibrated or
    adapted."""
    layers = _choose_layers(data.layers)
    parts = [
        _thin(unit(states), len(layers) * len(_STATES)).reshape(len(states), -1)
        for field in _STATES
        for states in _read_states(data, field, split, layers)
    ]
    states = to_numpy(library(parts[0]).concatenate(parts, axis=1))
    columns = (scores[:, None], read_confidence(data, split), states)
    return np.concatenate(columns, axis=1).astype(np.float32)


def _read_states(data: Features, field: str, split: str, layers: range) -> Iterator[Array]:
    """Of a few answers, those of all layers at once, which is faster; of many, which would not fit
    in memory, layer by layer."""
    if len(data.labels[split]) <= FEW:
        yield data.read(field, split)[:, layers.start : layers.stop : layers.step]
    else:
        yield from (data.read(field, split, layer=layer) for layer in layers)


def _choose_layers(layers: int) -> range:
    return range(layers // 4, 3 * layers // 4 + 1, 2)


def _thin(states: Array, parts: int) -> Array:
    step = -(-states.shape[-1] * parts // _MOST_STATES)
    return states[..., ::step]


@dataclass(frozen=True, kw_only=True)
class Region:
    """Where answers lie like those that a detector was adapted to, by the mean state of a middle
    layer, whose first number has the place `first` in a vector. `limit` is a distance that 97.5% of
    them do not reach."""

    first: int
    mean: Float32[np.ndarray, " dim"]
    shape: Gaussian
    limit: float

    @classmethod
    def fit(cls, vectors: Vectors, layers: int) -> Self:
        """The limit comes from answers that the shape was not fitted on."""
        count = len(_choose_layers(layers))
        size = (vectors.shape[1] - _FIRST_STATE) // (len(_STATES) * count)
        first = _FIRST_STATE + (count + count // 2) * size
        states = vectors[:, first : first + size]
        folds = np.arange(len(states)) % _FOLDS
        unseen = [_measure(states[folds != one], states[folds == one]) for one in range(_FOLDS)]
        limit = max(float(np.quantile(np.concatenate(unseen), _WITHIN)), 1e-6)
        mean = states.mean(axis=0)
        return cls(first=first, mean=mean, shape=Gaussian.fit(states - mean), limit=limit)

    def measure(self, vectors: Vectors) -> Float64[np.ndarray, " answers"]:
        """Distances in units of the limit."""
        states = vectors[:, self.first : self.first + len(self.mean)]
        return np.sqrt(self.shape.square(states - self.mean)).astype(np.float64) / self.limit


def _measure(known: Array, states: Array) -> Array:
    mean = known.mean(axis=0)
    return np.sqrt(Gaussian.fit(known - mean).square(states - mean))


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """What an adapted detector has besides its method: a score that is linear in the vectors, and
    where the answers lie that it was adapted to."""

    linear: Linear
    region: Region

    def score(self, vectors: Vectors) -> Float32[np.ndarray, " answers"]:
        return to_numpy(self.linear.score(vectors))


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """The result of `adapt_vectors`. `figures` say what the labels bought, measured on answers that
    nothing was fitted on; its `kept_ranking` says why the ranking is still that of the detector
    before, None if it is not."""

    adaptation: Adaptation
    calibration: PlattScale
    threshold: float | None  # None: as before
    figures: dict[str, Any]


def adapt_vectors(
    vectors: Vectors, labels: Labels, before: Linear, scale: PlattScale, layers: int
) -> Adapted:
    """Adapt the score `before`, which is linear in the vectors, and its calibration to answers,
    some of which have labels; the others count for their mean and spread. Raises InputError for too
    few labels."""
    is_labeled = labels != UNLABELED
    given, truth = vectors[is_labeled], labels[is_labeled]
    if len(truth) < LEAST_LABELS:
        raise InputError(
            f"{len(truth):,} answers have a label, but adaptation requires at least "
            f"{LEAST_LABELS}: label more answers."
        )
    source = before.score(given)
    scores, linear, kept = source, before, _find_rare(truth)
    if kept is None:
        fit = _Ridge.of(vectors, given, source)
        unseen = fit.cross_validate(truth)
        kept = _find_loss(truth, unseen, source)
        if kept is None:
            scores, linear = unseen, fit.fit(truth, before)
    threshold = None
    figures: dict[str, Any] = {
        "labels": len(truth),
        "hallucinated": int(truth.sum()),
        "unlabeled": int((~is_labeled).sum()),
        "kept_ranking": kept,
    }
    if min(np.bincount(truth, minlength=2)) > 1:  # otherwise nothing can be measured
        figures |= _compare(truth, scores, source)
        figures["ece_before"] = expected_calibration_error(truth, scale.probabilities(source))
        scale = PlattScale.fit(truth, scores)
        threshold = best_threshold(truth, scale.probabilities(scores))
    adaptation = Adaptation(linear=linear, region=Region.fit(vectors, layers))
    return Adapted(adaptation=adaptation, calibration=scale, threshold=threshold, figures=figures)


def _find_rare(truth: Labels) -> str | None:
    counts = {"hallucinated": int(truth.sum()), "correct": int((1 - truth).sum())}
    rarer = min(counts, key=lambda name: counts[name])
    if counts[rarer] >= _LEAST_PER_CLASS:
        return None
    return (
        f"{counts[rarer] or 'none'} of the {len(truth):,} labeled answers "
        f"{'is' if counts[rarer] == 1 else 'are'} {rarer}, fewer than {_LEAST_PER_CLASS}"
    )


def _find_loss(truth: Labels, after: np.ndarray, before: np.ndarray) -> str | None:
    """Why adaptation would make the ranking worse; None if that is not shown."""
    change = compare_paired(truth, after, before)
    if change.high >= 0:
        return None
    return (
        f"adapted, its AUROC on the labeled answers is lower by {-change.difference:.3f} "
        f"[{-change.high:.3f}, {-change.low:.3f}]"
    )


def _compare(truth: Labels, after: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    change = compare_paired(truth, after, before)
    return {
        "auroc_before": auroc(truth, before),
        "auroc_before_ci": [*bootstrap_auroc(truth, before)],
        "auroc_after": auroc(truth, after),
        "auroc_after_ci": [*bootstrap_auroc(truth, after)],
        "gain": change.difference,
        "gain_ci": [change.low, change.high],
        "ece_after": expected_calibration_error(truth, calibrate_unseen(truth, after)),
    }


def calibrate_unseen(truth: Labels, scores: np.ndarray) -> Float64[np.ndarray, " answers"]:
    """The risk of each answer, calibrated without it."""
    folds, risks = _draw_folds(truth, 0), np.empty(len(truth))
    for one in range(_FOLDS):
        own = folds == one
        rest = PlattScale.fit(truth[~own], scores[~own])
        risks[own] = rest.probabilities(scores[own])
    return risks


def _draw_folds(truth: Labels, seed: int) -> Int[np.ndarray, " answers"]:
    """Both classes in every fold, as far as there are answers of them."""
    random, folds = np.random.default_rng(seed), np.empty(len(truth), np.int64)
    for one in (0, 1):
        rows = random.permutation(np.flatnonzero(truth == one))
        folds[rows] = np.arange(len(rows)) % _FOLDS
    return folds


@dataclass(frozen=True, kw_only=True)
class _Ridge:
    """The score before with another scale and offset, fitted by least squares, plus kernel ridge
    regression of what is left on the states. Both classes weigh the same. States are centered and
    scaled over all answers, labeled or not."""

    states: Float32[np.ndarray, "labeled states"]
    gram: Float64[np.ndarray, "labeled labeled"]
    source: Float64[np.ndarray, " labeled"]
    mean: Float32[np.ndarray, " states"]
    spread: Float32[np.ndarray, " states"]  # such that the mean squared length is 1

    @classmethod
    def of(cls, vectors: Vectors, given: Vectors, source: np.ndarray) -> Self:
        every = vectors[:, _FIRST_STATE:]
        mean, spread = every.mean(axis=0), every.std(axis=0)
        spread = np.where(spread > 0, spread, np.inf).astype(np.float32) * len(mean) ** 0.5
        states = (given[:, _FIRST_STATE:] - mean) / spread
        gram = (states @ states.T).astype(np.float64)
        return cls(states=states, gram=gram, source=doubled(source), mean=mean, spread=spread)

    def fit(self, truth: Labels, before: Linear) -> Linear:
        """The score as one that is linear in the vectors."""
        slope, offset, parts = self._solve(np.arange(len(truth)), truth)
        found = (parts.astype(np.float32) @ self.states) / self.spread
        weights = slope * to_numpy(before.weights)
        weights[_FIRST_STATE:] += found
        bias = slope * before.bias + offset - float(found @ self.mean)
        return Linear(weights=weights.astype(np.float32), bias=bias)

    def cross_validate(self, truth: Labels) -> Float64[np.ndarray, " labeled"]:
        """The score of every labeled answer by fits without it, the mean of several rounds."""
        found = np.zeros((_ROUNDS, len(truth)))
        for number in range(_ROUNDS):
            folds = _draw_folds(truth, number)
            for one in range(_FOLDS):
                own, rest = np.flatnonzero(folds == one), np.flatnonzero(folds != one)
                slope, offset, parts = self._solve(rest, truth[rest])
                found[number, own] = slope * self.source[own] + offset
                found[number, own] += self.gram[np.ix_(own, rest)] @ parts
        return found.mean(axis=0)

    def _solve(self, rows: np.ndarray, truth: Labels) -> tuple[float, float, np.ndarray]:
        """Scale and offset of the source, and what each of the rows adds."""
        source, targets = self.source[rows], 2.0 * truth - 1
        counts = np.bincount(truth, minlength=2)
        weights = (0.5 / counts)[truth]
        centered = source - weights @ source
        slope = max(0.0, weights @ (centered * targets) / max(weights @ centered**2, 1e-12))
        offset = -slope * (weights @ source)  # the weighted mean of the targets is 0
        rarer = min(counts)
        # What one class has too many of adds little: 100 labels with 10 of a class are worth 36.
        worth = 4 * counts.prod() / counts.sum()
        ridge = np.diag(_RIDGE / (worth * weights))
        rest = targets - slope * source - offset
        parts = np.linalg.solve(self.gram[np.ix_(rows, rows)] + ridge, rest)
        return slope, offset, rarer / (rarer + _HALF_WEIGHT) * parts


def choose_next(
    vectors: Vectors, labels: Labels, before: Linear, count: int
) -> Int[np.ndarray, " chosen"]:
    """Rows of unlabeled answers to label next: one of each of `count` equal parts of the ranking by
    risk, adapted to the labels so far. So all kinds of answers are asked for, and their mix is that
    of all answers. Those that the score is most unsure about, or that are most unlike the labeled
    ones, teach it less than answers drawn at random."""
    is_labeled = labels != UNLABELED
    given, truth = vectors[is_labeled], labels[is_labeled]
    linear = before
    if len(truth) and _find_rare(truth) is None:
        linear = _Ridge.of(vectors, given, before.score(given)).fit(truth, before)
    rows = np.flatnonzero(~is_labeled)
    ranked = rows[to_numpy(linear.score(vectors[rows])).argsort()]
    random = np.random.default_rng(len(truth))
    parts = np.array_split(ranked, min(count, len(ranked))) if len(ranked) else []
    return np.array([random.choice(part) for part in parts], np.int64)


def start_linear(numbers: int) -> Linear:
    """The score of a detector that is not adapted: the first number of a vector."""
    weights = np.zeros(numbers, np.float32)
    weights[0] = 1
    return Linear(weights=weights, bias=0.0)
