"""The known answers of a store beside which a new one is placed: the nearest of them, and a linear
probe per layer fitted on their labels."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from clew.hallucination.answer_page.picture import unit_length
from clew.hallucination.live.page.index import AnswerIndex
from clew.hallucination.traces import TraceBatchLoader
from clew.metrics import auroc
from clew.metrics.calibration import PlattScale

_MOST_ANSWERS = 1500
_SAMPLE_BYTES = 128 << 20
_FOLDS = 3
# For states scaled to variance 1; the same as on the page of a stored answer.
_RIDGE = 0.1
_FEWEST_PER_LABEL = 12


@dataclass(frozen=True, kw_only=True)
class LayerProbes:
    """A linear probe per fold and layer, calibrated on the answers that it was not fitted on."""

    weights: Float32[np.ndarray, "folds layers dim"]
    biases: Float32[np.ndarray, "folds layers"]
    scales: tuple[PlattScale, ...]
    aurocs: tuple[float, ...]
    base_rate: float

    def risks(self, states: Float[np.ndarray, "layers dim"], fold: int | None) -> list[float]:
        """The risk at every layer, from the probes that did not see the answers of `fold`, or from
        the mean of all probes for an answer that none has seen."""
        outputs = (self.weights * states).sum(-1) + self.biases
        own = outputs.mean(0) if fold is None else outputs[fold]
        pairs = zip(self.scales, own, strict=True)
        return [float(scale.probabilities(np.array([value]))[0]) for scale, value in pairs]


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    number: int
    similarity: float


@dataclass(frozen=True, kw_only=True)
class KnownAnswers:
    """Answers spread evenly over a store; `layer` is the one whose states are compared."""

    numbers: Int64[np.ndarray, " answers"]
    layer: int
    center: Float32[np.ndarray, " dim"]
    states: Float32[np.ndarray, "answers dim"]  # centered, of unit length
    probes: LayerProbes | None

    @property
    def shape(self) -> tuple[int, int]:
        """Layers (0 if unknown) and dimension."""
        return (0 if self.probes is None else len(self.probes.scales)), len(self.center)

    def risks(
        self, states: Float[np.ndarray, "layers dim"], number: int | None
    ) -> list[float] | None:
        """The risk at every layer; `number` is that of a stored answer."""
        if self.probes is None or states.shape != self.shape:
            return None
        places = [] if number is None else np.flatnonzero(self.numbers == number).tolist()
        return self.probes.risks(states, places[0] % _FOLDS if places else None)

    def nearest(
        self, states: Float[np.ndarray, "layers dim"], number: int | None, count: int
    ) -> list[Neighbor]:
        """The answers whose states are most similar, without the stored answer `number`."""
        if not len(self.states) or states.shape[1] != len(self.center):
            return []
        similarity = self.states @ unit_length(states[self.layer] - self.center)
        order = np.argsort(-similarity, kind="stable")[: count + 1]
        found = [
            Neighbor(number=int(self.numbers[i]), similarity=float(similarity[i])) for i in order
        ]
        return [one for one in found if one.number != number][:count]


def gather_known(loader: TraceBatchLoader, index: AnswerIndex) -> KnownAnswers | None:
    """Read the states of some answers and fit the probes; None if the store has no states."""
    numbers, states, labels = _read_states(loader, index)
    if len(states) < 2:
        return None
    probes = _fit_probes(states, labels) if _are_enough(labels) else None
    layers = states.shape[1]
    layer = int(np.argmax(probes.aurocs)) if probes else 2 * layers // 3
    chosen = states[:, layer].astype(np.float32)
    center = chosen.mean(0)
    return KnownAnswers(
        numbers=numbers,
        layer=layer,
        center=center,
        states=unit_length(chosen - center),
        probes=probes,
    )


def _read_states(
    loader: TraceBatchLoader, index: AnswerIndex
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, states of unit length [answers, layers, dim] and labels (NaN: none). Labeled answers
    take precedence."""
    labeled = np.flatnonzero(~np.isnan(index.hallucinated))
    rows = labeled if _are_enough(index.hallucinated) else np.arange(len(index))
    found: list[tuple[int, np.ndarray]] = []
    for row in _spread(rows, loader):
        trace = loader.get_trace_by_global_id(int(index.numbers[row]))
        value = None if trace is None else trace.get("last_hidden")
        if value is not None and np.isfinite(value).all():
            found.append((row, unit_length(value).astype(np.float16)))
    kept = np.array([row for row, _ in found], np.int64)
    states = np.stack([value for _, value in found]) if found else np.zeros((0, 0, 0), np.float16)
    return index.numbers[kept], states, index.hallucinated[kept]


def _spread(rows: np.ndarray, loader: TraceBatchLoader) -> Iterator[int]:
    """Rows evenly spaced, as many as the memory set aside holds."""
    first = loader.get_batch(0)[0].get("last_hidden") if len(loader) else None
    if first is None or not len(rows):
        return
    count = max(2, min(_MOST_ANSWERS, _SAMPLE_BYTES // (2 * first.size), len(rows)))
    yield from rows[np.linspace(0, len(rows) - 1, count).round().astype(int)].tolist()


def _are_enough(labels: np.ndarray) -> bool:
    return min(int((labels == 1).sum()), int((labels == 0).sum())) >= _FEWEST_PER_LABEL


def _fit_probes(states: np.ndarray, labels: np.ndarray) -> LayerProbes:
    hallucinated = labels == 1
    folds = np.arange(len(labels)) % _FOLDS
    layers, dim = states.shape[1:]
    weights = np.zeros((_FOLDS, layers, dim), np.float32)
    biases = np.zeros((_FOLDS, layers), np.float32)
    held_out = np.zeros((layers, len(labels)))
    for layer in range(layers):
        wide = states[:, layer].astype(np.float32)
        for fold in range(_FOLDS):
            fitted = _fit_one(wide, hallucinated, folds != fold)
            weights[fold, layer], biases[fold, layer] = fitted
            held_out[layer, folds == fold] = wide[folds == fold] @ fitted[0] + fitted[1]
    return LayerProbes(
        weights=weights,
        biases=biases,
        scales=tuple(PlattScale.fit(hallucinated, outputs) for outputs in held_out),
        aurocs=tuple(float(auroc(hallucinated, outputs)) for outputs in held_out),
        base_rate=float(hallucinated.mean()),
    )


def _fit_one(
    states: Float32[np.ndarray, "answers dim"],
    hallucinated: Bool[np.ndarray, " answers"],
    used: Bool[np.ndarray, " answers"],
) -> tuple[np.ndarray, float]:
    """Weights and bias of a ridge regression on the answers used."""
    from sklearn.linear_model import Ridge

    center = states[used].mean(0)
    scale = max(float(np.sqrt(((states[used] - center) ** 2).sum(1).mean())), 1e-12)
    target = np.where(hallucinated[used], 1.0, -1.0).astype(np.float32)
    probe = Ridge(alpha=_RIDGE).fit((states[used] - center) / scale, target)
    weights = probe.coef_.astype(np.float32) / scale
    return weights, float(probe.intercept_ - weights @ center)
