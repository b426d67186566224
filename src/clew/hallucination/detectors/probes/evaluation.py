"""Methods on what the model says about its own answers: P(True), the probability it gives to its
answer being true; its states after the replies that the answer is true and that it is false, with
labels (contrast probe) and without (CCS, contrast-consistent search); and the entropy over the
meanings of drawn answers, which are the same if the model says that they entail each other."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy  # its modules load on first use
from jaxtyping import Float32, Float64
from threadpoolctl import threadpool_limits

from clew.hallucination.detectors.probes.baselines import cluster_entropy, count_clusters
from clew.hallucination.detectors.probes.fitting import (
    Array,
    Linear,
    Matrix,
    Scale,
    choose_strength,
    fit_path,
    library,
    standardize,
    to_numpy,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, Scores, method
from clew.hallucination.traces.schema import CONTRAST_FALSE, CONTRAST_TRUE, ENTAILMENT, P_TRUE
from clew.metrics.ranking import auroc

CONTRAST = (CONTRAST_TRUE, CONTRAST_FALSE)
# Without labels, a start may end in a poor minimum: the best of several is kept.
_STARTS = 10
_MOST_STEPS = 200
# As in the paper's code: the weight decay that keeps the direction from growing.
_DECAY = 0.01
_SMALLEST = 1e-6
_STEEPEST = 30.0
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True)
class TrueProbability(Scorer, kind="p_true"):
    """Minus the mean log-odds that the model gives to its answer being true."""

    reads = (P_TRUE,)

    def score(self, data: Features, split: str) -> Array:
        found = data.read(P_TRUE, split).clip(_SMALLEST, 1 - _SMALLEST)
        log = library(found).log
        return (log(1 - found) - log(found)).mean(1)


@method("p_true", "P(True)", "no training", P_TRUE)
def learn_p_true(data: Features) -> Fitted:  # noqa: ARG001
    return Fitted(scorer=TrueProbability())


@dataclass(frozen=True, kw_only=True)
class EntailmentEntropy(Scorer, kind="entailment_entropy"):
    """The entropy over clusters of drawn answers. Two of them mean the same if both directions of
    entailment are more probable than the threshold."""

    threshold: float
    reads = (ENTAILMENT, "samples", "question")

    def score(self, data: Features, split: str) -> Scores:
        found = to_numpy(data.read(ENTAILMENT, split))
        sizes = (cluster_by_entailment(one, self.threshold) for one in found)
        return np.fromiter(map(cluster_entropy, sizes), np.float32, len(found))


def cluster_by_entailment(
    entails: Float32[np.ndarray, "draws draws"], threshold: float
) -> list[int]:
    """The sizes of the clusters: each answer joins the first cluster whose first answer it entails
    and is entailed by."""
    same = np.minimum(entails, entails.T) > threshold
    return count_clusters(len(same), lambda first, row: same[first, row])


@method("entailment_entropy", "Entailment entropy", "no training", ENTAILMENT)
def learn_entailment_entropy(data: Features) -> Fitted:
    """Choose the threshold on validation: small models say yes to almost everything."""
    labels, found = data.labels["validation"], []
    for threshold in _candidates(data):
        scorer = EntailmentEntropy(threshold=threshold)
        found.append((auroc(labels, scorer.score(data, "validation")), scorer))
    _, best = max(found, key=lambda one: one[0])
    return Fitted(scorer=best, chosen={"threshold": best.threshold})


def _candidates(data: Features) -> list[float]:
    """0.5, and quantiles of the training answers' probabilities; equal texts do not count."""
    known = data.read(ENTAILMENT, "train")
    known = np.minimum(known, known.swapaxes(1, 2))[known < 1]
    return [0.5, *np.quantile(known, _QUANTILES).tolist()] if len(known) else [0.5]


@dataclass(frozen=True, kw_only=True)
class ContrastProbe(Scorer, kind="contrast"):
    """A linear score of the difference between the states after both replies, at one of the kept
    layers; each reply's states are normalized by themselves."""

    layer: int
    true: Linear
    false: Linear
    reads = CONTRAST

    @property
    def parameters(self) -> int:
        return self.true.parameters

    def score(self, data: Features, split: str) -> Array:
        true, false = _read(data, split, self.layer)
        return self.true.score(true) - self.false.score(false)


@dataclass(frozen=True, kw_only=True)
class ConsistentProbe(ContrastProbe, kind="contrast_consistent"):
    """The probability that an answer is hallucinated: the mean of what the states after "false"
    and those after "true" give, at one of the kept layers."""

    def score(self, data: Features, split: str) -> Array:
        true, false = _read(data, split, self.layer)
        difference = _sigmoid(self.true.score(true)) - _sigmoid(self.false.score(false))
        return (1 + difference) / 2


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The normalized training states of one layer after both replies."""

    true: Matrix
    false: Matrix
    scales: tuple[Scale, Scale]

    @classmethod
    def read(cls, data: Features, layer: int) -> "_Pairs":
        true, false = _read(data, "train", layer)
        scales = [
            standardize(states, f"{name}, layer {layer},")
            for name, states in zip(CONTRAST, (true, false), strict=True)
        ]
        return cls(true=true, false=false, scales=(scales[0], scales[1]))

    def undo(self, linear: Linear, *, shared_bias: bool) -> tuple[Linear, Linear]:
        """The same scores for states that are not normalized. Of a difference, only one side has
        the bias."""
        second = linear if shared_bias else Linear(weights=linear.weights, bias=0.0)
        return self.scales[0].undo(linear), self.scales[1].undo(second)


@method("contrast_probe", "Contrast probe", "probe", *CONTRAST)
def learn_contrast_probe(data: Features) -> Fitted:
    """Fit a logistic regression on the differences of the states, at the best kept layer."""
    labels = data.labels["validation"]
    probes = []
    for layer in range(_count_layers(data)):
        pairs = _Pairs.read(data, layer)
        others = [
            scale.apply(states)
            for scale, states in zip(pairs.scales, _read(data, "validation", layer), strict=True)
        ]
        path = fit_path(pairs.true - pairs.false, data.labels["train"], balanced=True)
        choice = choose_strength(path, others[0] - others[1], labels)
        true, false = pairs.undo(choice.linear, shared_bias=False)
        probe = ContrastProbe(layer=layer, true=true, false=false)
        probes.append((choice.auroc, choice.strength, probe))
    _, strength, best = max(probes, key=lambda one: one[0])
    return Fitted(scorer=best, chosen={"layer": best.layer, "C": strength})


@method("ccs", "CCS", "probe", *CONTRAST)
def learn_ccs(data: Features) -> Fitted:
    """Find, without labels, the direction along which the two replies contradict each other. Only
    which of its ends is hallucinated, and the layer, are chosen on validation."""
    labels = data.labels["validation"]
    probes = []
    for layer in range(_count_layers(data)):
        pairs = _Pairs.read(data, layer)
        with threadpool_limits(1):  # products of a matrix and a vector mostly wait
            linear = _search(pairs)
        for factor in (1, -1):
            true, false = pairs.undo(linear.times(factor), shared_bias=True)
            probe = ConsistentProbe(layer=layer, true=true, false=false)
            probes.append((auroc(labels, probe.score(data, "validation")), probe))
    _, best = max(probes, key=lambda one: one[0])
    return Fitted(scorer=best, chosen={"layer": best.layer})


def _search(pairs: _Pairs) -> Linear:
    """The direction with the smallest loss, of several random starts."""
    random, size = np.random.default_rng(0), pairs.true.shape[1]
    loss = partial(_consistency_loss, np.concatenate([pairs.true, pairs.false]))
    options = {"maxiter": _MOST_STEPS}
    found = []
    for _ in range(_STARTS):
        start = np.append(random.standard_normal(size) / np.sqrt(size), 0.0)
        found.append(
            scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        )
    point = min(found, key=lambda one: one.fun).x
    return Linear(weights=point[:-1].astype(np.float32), bias=float(point[-1]))


def _consistency_loss(
    states: Matrix, point: Float64[np.ndarray, " size"]
) -> tuple[float, np.ndarray]:
    """(p+ + p- - 1)^2 + min(p+, p-)^2, averaged, with weight decay, and its gradient; the first
    half of the states are those after "true"."""
    weights = point[:-1].astype(np.float32)
    both = scipy.special.expit(states @ weights + np.float32(point[-1])).reshape(2, -1)
    excess, least = both.sum(0) - 1, both.min(0)
    pull = 2 * excess + 2 * least * (both == least)
    pull = (pull * both * (1 - both) / both.shape[1]).reshape(-1)
    slope = np.append(pull @ states, pull.sum()).astype(np.float64)
    slope[:-1] += _DECAY * point[:-1]
    loss = float((excess**2 + least**2).mean())
    return loss + _DECAY / 2 * float(point[:-1] @ point[:-1]), slope


def _read(data: Features, split: str, layer: int) -> tuple[Any, Any]:
    true, false = (data.read(name, split, layer=layer) for name in CONTRAST)
    return true, false


def _count_layers(data: Features) -> int:
    return data.read(CONTRAST_TRUE, "validation").shape[1]


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + library(values).exp(-values.clip(-_STEEPEST, _STEEPEST)))
