"""Linear probes on the last answer token's states: at the best layer, and at the middle one."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter
from weakref import WeakKeyDictionary

from threadpoolctl import threadpool_info, threadpool_limits

from clew.hallucination.detectors.probes.logistic import (
    Choice,
    Linear,
    Scale,
    choose_strength,
    fit_path,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores

STATES = "sequence"
# Layers that are fitted, and in memory, at a time.
_SIDE_BY_SIDE = 4
_READING = Lock()  # a store is read by one thread at a time


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """A linear score of one layer's states."""

    layer: int
    strength: float
    linear: Linear
    auroc: float

    @property
    def parameters(self) -> int:
        return self.linear.parameters

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(data.read(STATES, split, layer=self.layer))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A probe a layer, and how long they took."""

    probes: Sequence[LayerProbe]
    seconds: float

    @property
    def best(self) -> LayerProbe:
        return max(self.probes, key=lambda probe: probe.auroc)


# All layers take longest, and their best is asked for by two methods and by every seed.
_SWEEPS: WeakKeyDictionary[Features, Sweep] = WeakKeyDictionary()


def sweep_layers(data: Features) -> tuple[Sweep, bool]:
    """A probe for every layer, and whether it was there already."""
    known = _SWEEPS.get(data)
    if known is not None:
        return known, True
    start = perf_counter()
    probes = fit_layers(data, range(data.layers))
    _SWEEPS[data] = Sweep(probes=probes, seconds=perf_counter() - start)
    return _SWEEPS[data], False


def fit_layers(data: Features, layers: Iterable[int]) -> list[LayerProbe]:
    """A layer a thread, as many as BLAS would have: its own threads wait more than they work on
    products of a matrix with one vector."""
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    with threadpool_limits(1), ThreadPoolExecutor(min(_SIDE_BY_SIDE, threads)) as pool:
        return list(pool.map(partial(fit_layer, data), layers))


def fit_layer(data: Features, layer: int) -> LayerProbe:
    """The strength is the best in the validation split."""
    choice, scale = _choose(data, layer)
    return LayerProbe(
        layer=layer,
        strength=choice.strength,
        linear=scale.undo(choice.linear),
        auroc=choice.auroc,
    )


def learn_best_layer(data: Features) -> Fitted:
    sweep, was_there = sweep_layers(data)
    return Fitted(
        scorer=sweep.best,
        chosen={"layer": sweep.best.layer, "C": sweep.best.strength},
        by_layer=sweep.probes,
        shared_seconds=sweep.seconds if was_there else 0.0,
    )


def learn_middle_layer(data: Features) -> Fitted:
    (probe,) = fit_layers(data, [data.layers // 2])
    return Fitted(scorer=probe, chosen={"layer": probe.layer, "C": probe.strength})


def _choose(data: Features, layer: int) -> tuple[Choice, Scale]:
    with _READING:
        states, validation = (
            data.read(STATES, split, layer=layer) for split in ("train", "validation")
        )
    scale = standardize(states, f"{STATES}, layer {layer},")
    scale.apply(validation)
    path = fit_path(states, data.labels["train"])
    return choose_strength(path, validation, data.labels["validation"]), scale
