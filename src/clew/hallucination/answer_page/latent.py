"""Hidden states across layers: a plane to draw them in, the means of correct and hallucinated
answers, and how well a linear probe separates the two at every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32

from clew.hallucination.answer_page.store import Judged, Kind, iter_shards
from clew.hallucination.traces import TraceBatchLoader

MAX_ANSWERS = 500
_SAMPLE_BYTES = 128 << 20
_FIT_BYTES = 64 << 20
# For states scaled to variance 1; chosen once, on answers of the embedded model.
_RIDGE = 0.1
_FEWEST_PER_LABEL = 6


@dataclass(frozen=True, kw_only=True)
class MeanPath:
    """Where answers with a label (None: all) lie in the plane: mean and standard deviation."""

    kind: Kind | None
    answers: int
    center: Float32[np.ndarray, "layers 2"]
    spread: Float32[np.ndarray, "layers 2"]


@dataclass(frozen=True, kw_only=True)
class Band:
    """Quartiles of a probe's output for one label by layer: -1 is correct, +1 hallucinated."""

    kind: Kind
    answers: int
    quartiles: Float32[np.ndarray, "3 layers"]


def spread_layers(values: np.ndarray, layers: Sequence[int], count: int) -> np.ndarray:
    """Values of some of `count` layers as values of all: 0 for the others."""
    if len(values) >= count:
        return values
    spread = np.zeros_like(values, shape=(count, *values.shape[1:]))
    spread[list(layers)] = values
    return spread


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Everything that the panels of hidden states draw besides the answers themselves."""

    paths: tuple[Float32[np.ndarray, "layers 2"] | None, ...]  # of the shown answers
    means: tuple[MeanPath, ...]
    explained: tuple[float, float]
    fitted_on: int
    excluded: int
    places: tuple[Float32[np.ndarray, " layers"] | None, ...]  # of the shown answers
    bands: tuple[Band, ...]
    lookback_mean: Float32[np.ndarray, "layers heads"] | None
    lookback_deviation: Float32[np.ndarray, "layers heads"] | None


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Answers spread evenly over the store, as balanced by label as possible."""

    states: np.ndarray  # float16 [answers, layers, dim], of unit length
    lookback: list[np.ndarray]
    excluded: int  # answers without states, or with non-finite ones
    hallucinated: Bool[np.ndarray, " answers"] | None


def describe_latent(
    loader: TraceBatchLoader,
    judged: Judged | None,
    shown: Sequence[np.ndarray | None],
    excluded: Sequence[int],
) -> Latent | None:
    """Describe the hidden states of the store for the panels; None if the answers shown have none.
    The answers shown are not among those they are compared with, but they are used to fit the
    plane."""
    known = [states for states in shown if states is not None]
    if not known or min(known[0].shape) < 2:
        return None
    sample = _read_sample(loader, judged, excluded, known[0].shape)
    mean, components, explained = _fit_plane(sample, known)
    # One by one: all of them in float32 would take twice the memory.
    flat = [(states.astype(np.float32) - mean) @ components.T for states in sample.states]
    projected = np.array(flat, np.float32).reshape(-1, len(known[0]), 2)
    bands, places = _place(sample, shown)
    lookback = np.stack(sample.lookback) if len(sample.lookback) > 1 else None
    return Latent(
        paths=tuple(None if s is None else (s - mean) @ components.T for s in shown),
        means=_mean_paths(projected, sample.hallucinated),
        explained=explained,
        fitted_on=len(sample.states),
        excluded=sample.excluded,
        places=places,
        bands=bands,
        lookback_mean=None if lookback is None else lookback.mean(0),
        lookback_deviation=None if lookback is None else lookback.std(0),
    )


def _read_sample(
    loader: TraceBatchLoader,
    judged: Judged | None,
    excluded: Sequence[int],
    shape: tuple[int, ...],
) -> _Sample:
    limit = max(2, min(MAX_ANSWERS, _SAMPLE_BYTES // (2 * shape[0] * shape[1])))
    numbers, hallucinated = _choose(loader, judged, excluded, limit)
    states, lookback, kept = [], [], []
    for number, label in zip(numbers, hallucinated, strict=True):
        trace = loader.get_trace_by_global_id(number)
        value = None if trace is None else trace["last_hidden"]
        if trace is None or value is None or not np.isfinite(value).all():
            continue
        states.append(unit_length(value).astype(np.float16))
        kept.append(label)
        heads = trace.get("lookback")
        if heads is not None and np.isfinite(heads).all():
            heads = spread_layers(heads, trace.with_attention, shape[0])
            lookback.append(np.asarray(heads, np.float32))
    return _Sample(
        states=np.stack(states) if states else np.zeros((0, *shape), np.float16),
        lookback=lookback,
        excluded=len(numbers) - len(kept),
        hallucinated=None if judged is None else np.array(kept, bool),
    )


def _choose(
    loader: TraceBatchLoader, judged: Judged | None, excluded: Sequence[int], limit: int
) -> tuple[list[int], list[bool]]:
    if judged is None:
        columns = (shard.read_column("global_example_id") for shard in iter_shards(loader))
        ids = [number for column in columns for number in column.to_pylist()]
        ids = [number for number in ids if number not in excluded]
        chosen = _spread(np.array(ids, np.int64), limit)
        return chosen, [False] * len(chosen)
    groups = [judged.numbers_of("correct"), judged.numbers_of("hallucinated")]
    groups = [numbers[~np.isin(numbers, excluded)] for numbers in groups]
    correct, hallucinated = (_spread(numbers, limit // 2) for numbers in groups)
    return correct + hallucinated, [False] * len(correct) + [True] * len(hallucinated)


def _spread(numbers: np.ndarray, count: int) -> list[int]:
    """At most `count` of them, evenly spaced."""
    ordered = np.sort(numbers)
    places = np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    return ordered[places].tolist()


def _fit_plane(
    sample: _Sample, shown: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """The first two principal components of the states of all layers."""
    from sklearn.decomposition import PCA

    layers, dim = shown[0].shape
    count = max(1, _FIT_BYTES // (4 * layers * dim))
    step = max(1, -(-len(sample.states) // count))
    some = sample.states[::step].astype(np.float32).reshape(-1, dim)
    # Two of many components: an exact decomposition takes ten times as long.
    pca = PCA(2, svd_solver="randomized", random_state=0).fit(np.concatenate([some, *shown]))
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    return pca.mean_, pca.components_, (first, second)


def _mean_paths(projected: np.ndarray, hallucinated: np.ndarray | None) -> tuple[MeanPath, ...]:
    groups: list[tuple[Kind | None, np.ndarray]] = [(None, projected)]
    if hallucinated is not None:
        groups = [("correct", projected[~hallucinated]), ("hallucinated", projected[hallucinated])]
    return tuple(
        MeanPath(kind=kind, answers=len(some), center=some.mean(0), spread=some.std(0))
        for kind, some in groups
        if len(some)
    )


def _place(
    sample: _Sample, shown: Sequence[np.ndarray | None]
) -> tuple[tuple[Band, ...], tuple[np.ndarray | None, ...]]:
    """The output of a linear probe fitted at each layer, from correct (-1) to hallucinated (+1).

    The bands are from held-out answers: on the answers it was fitted on, the probe would look too
    good.
    """
    hallucinated = sample.hallucinated
    if hallucinated is None or min(hallucinated.sum(), (~hallucinated).sum()) < _FEWEST_PER_LABEL:
        return (), tuple(None for _ in shown)
    held_out = np.arange(len(hallucinated)) % 3 == 2
    values = [_fit_layer(sample, layer, held_out, shown) for layer in range(sample.states.shape[1])]
    others = np.stack([value[0] for value in values], axis=1)
    kinds: tuple[tuple[Kind, bool], ...] = (("correct", False), ("hallucinated", True))
    bands = []
    for kind, flag in kinds:
        some = others[hallucinated[held_out] == flag]
        quartiles = np.quantile(some, (0.25, 0.5, 0.75), axis=0).astype(np.float32)
        bands.append(Band(kind=kind, answers=len(some), quartiles=quartiles))
    places = np.stack([value[1] for value in values], axis=1)
    known = iter(places)
    return tuple(bands), tuple(None if s is None else next(known) for s in shown)


def _fit_layer(
    sample: _Sample, layer: int, held_out: np.ndarray, shown: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray]:
    """The outputs for the answers held out, and for those shown."""
    from sklearn.linear_model import Ridge

    assert sample.hallucinated is not None
    states = sample.states[:, layer].astype(np.float32)
    center = states[~held_out].mean(0)
    scale = max(float(np.sqrt(((states[~held_out] - center) ** 2).sum(1).mean())), 1e-12)
    target = np.where(sample.hallucinated[~held_out], 1.0, -1.0)
    probe = Ridge(alpha=_RIDGE).fit((states[~held_out] - center) / scale, target)
    mine = np.stack([s[layer] for s in shown if s is not None])
    others = probe.predict((states[held_out] - center) / scale)
    return others, probe.predict((mine - center) / scale)


def unit_length(states: Float[np.ndarray, "*rows dim"]) -> Float32[np.ndarray, "*rows dim"]:
    """Scale states to unit length: norms grow tenfold over the layers, but direction is what
    separates answers."""
    wide = np.asarray(states, np.float32)
    # In two steps: the squares of large states would overflow.
    wide = wide / np.maximum(np.abs(wide).max(-1, keepdims=True), 1e-20)
    return wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-20)
