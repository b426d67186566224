"""The way of answers through the latent space: a plane to draw it in, what right and made-up
answers do on average, and how far each layer tells the two apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from clew.hallucination.answer_page.picture import Band, Latent, MeanPath, unit_length
from clew.hallucination.answer_page.store import Judged, Kind, iter_shards
from clew.hallucination.traces import TraceBatchLoader

MAX_ANSWERS = 500
_SAMPLE_BYTES = 128 << 20
_FIT_BYTES = 64 << 20
# Of states scaled to variance 1; chosen once, on answers of the embedded model.
_RIDGE = 0.1
_LEAST_OF_A_KIND = 6


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Answers spread evenly over the store, as many of each kind as possible."""

    states: np.ndarray  # float16 [answers, layers, dim], of unit length
    lookback: list[np.ndarray]
    left_out: int  # without states, or with some that are no numbers
    made_up: Bool[np.ndarray, " answers"] | None


def describe_latent(
    loader: TraceBatchLoader,
    judged: Judged | None,
    shown: Sequence[np.ndarray | None],
    leave_out: Sequence[int],
) -> Latent | None:
    """None when the answers that are shown have no states. The answers shown take no part in
    what they are compared with; in the plane's directions they do."""
    known = [states for states in shown if states is not None]
    if not known or min(known[0].shape) < 2:
        return None
    sample = _read_sample(loader, judged, leave_out, known[0].shape)
    mean, components, explained = _fit_plane(sample, known)
    # One by one: all of them widened to float32 would be twice what is held already.
    flat = [(states.astype(np.float32) - mean) @ components.T for states in sample.states]
    projected = np.array(flat, np.float32).reshape(-1, len(known[0]), 2)
    bands, places = _place(sample, shown)
    lookback = np.stack(sample.lookback) if len(sample.lookback) > 1 else None
    return Latent(
        paths=tuple(None if s is None else (s - mean) @ components.T for s in shown),
        means=_mean_paths(projected, sample.made_up),
        explained=explained,
        fitted_on=len(sample.states),
        left_out=sample.left_out,
        places=places,
        bands=bands,
        lookback_mean=None if lookback is None else lookback.mean(0),
        lookback_deviation=None if lookback is None else lookback.std(0),
    )


def _read_sample(
    loader: TraceBatchLoader,
    judged: Judged | None,
    leave_out: Sequence[int],
    shape: tuple[int, ...],
) -> _Sample:
    limit = max(2, min(MAX_ANSWERS, _SAMPLE_BYTES // (2 * shape[0] * shape[1])))
    numbers, made_up = _choose(loader, judged, leave_out, limit)
    states, lookback, kept = [], [], []
    for number, label in zip(numbers, made_up, strict=True):
        trace = loader.get_trace_by_global_id(number)
        value = None if trace is None else trace["last_hidden"]
        if trace is None or value is None or not np.isfinite(value).all():
            continue
        states.append(unit_length(value).astype(np.float16))
        kept.append(label)
        heads = trace.get("lookback")
        if heads is not None and np.isfinite(heads).all():
            lookback.append(np.asarray(heads, np.float32))
    return _Sample(
        states=np.stack(states) if states else np.zeros((0, *shape), np.float16),
        lookback=lookback,
        left_out=len(numbers) - len(kept),
        made_up=None if judged is None else np.array(kept, bool),
    )


def _choose(
    loader: TraceBatchLoader, judged: Judged | None, leave_out: Sequence[int], limit: int
) -> tuple[list[int], list[bool]]:
    if judged is None:
        ids = [trace_id for trace_id in _all_numbers(loader) if trace_id not in leave_out]
        chosen = _spread(np.array(ids, np.int64), limit)
        return chosen, [False] * len(chosen)
    groups = [judged.numbers_of("right"), judged.numbers_of("made up")]
    groups = [numbers[~np.isin(numbers, leave_out)] for numbers in groups]
    right, made_up = (_spread(numbers, limit // 2) for numbers in groups)
    return right + made_up, [False] * len(right) + [True] * len(made_up)


def _all_numbers(loader: TraceBatchLoader) -> list[int]:
    shards = iter_shards(loader)
    return [i for shard in shards for i in shard.read_column("global_example_id").to_pylist()]


def _spread(numbers: np.ndarray, count: int) -> list[int]:
    """At most `count` of them, evenly spaced."""
    ordered = np.sort(numbers)
    places = np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    return ordered[places].tolist()


def _fit_plane(
    sample: _Sample, shown: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """The two main directions of the states of all layers."""
    from sklearn.decomposition import PCA

    layers, dim = shown[0].shape
    count = max(1, _FIT_BYTES // (4 * layers * dim))
    step = max(1, -(-len(sample.states) // count))
    some = sample.states[::step].astype(np.float32).reshape(-1, dim)
    pca = PCA(2, random_state=0).fit(np.concatenate([some, *shown]))
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    return pca.mean_, pca.components_, (first, second)


def _mean_paths(projected: np.ndarray, made_up: np.ndarray | None) -> tuple[MeanPath, ...]:
    groups: list[tuple[Kind | None, np.ndarray]] = [(None, projected)]
    if made_up is not None:
        groups = [("right", projected[~made_up]), ("made up", projected[made_up])]
    return tuple(
        MeanPath(kind=kind, answers=len(some), center=some.mean(0), spread=some.std(0))
        for kind, some in groups
        if len(some)
    )


def _place(
    sample: _Sample, shown: Sequence[np.ndarray | None]
) -> tuple[tuple[Band, ...], tuple[np.ndarray | None, ...]]:
    """Where answers lie between right and made up, by a straight line fitted in each layer.

    The bands are of answers that the line was not fitted on: on its own ones it would look
    better than it is.
    """
    made_up = sample.made_up
    if made_up is None or min(made_up.sum(), (~made_up).sum()) < _LEAST_OF_A_KIND:
        return (), tuple(None for _ in shown)
    held_out = np.arange(len(made_up)) % 3 == 2
    values = [_fit_layer(sample, layer, held_out, shown) for layer in range(sample.states.shape[1])]
    others = np.stack([value[0] for value in values], axis=1)
    bands = [_band(kind, others[made_up[held_out] == flag]) for kind, flag in _KINDS]
    places = np.stack([value[1] for value in values], axis=1)
    known = iter(places)
    return tuple(bands), tuple(None if s is None else next(known) for s in shown)


_KINDS: tuple[tuple[Kind, bool], ...] = (("right", False), ("made up", True))


def _fit_layer(
    sample: _Sample, layer: int, held_out: np.ndarray, shown: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray]:
    """The places of the answers held out, and of those shown."""
    from sklearn.linear_model import Ridge

    assert sample.made_up is not None
    states = sample.states[:, layer].astype(np.float32)
    center = states[~held_out].mean(0)
    scale = max(float(np.sqrt(((states[~held_out] - center) ** 2).sum(1).mean())), 1e-12)
    target = np.where(sample.made_up[~held_out], 1.0, -1.0)
    line = Ridge(alpha=_RIDGE).fit((states[~held_out] - center) / scale, target)
    mine = np.stack([s[layer] for s in shown if s is not None])
    others = line.predict((states[held_out] - center) / scale)
    return others, line.predict((mine - center) / scale)


def _band(kind: Kind, places: np.ndarray) -> Band:
    quartiles = np.quantile(places, (0.25, 0.5, 0.75), axis=0).astype(np.float32)
    return Band(kind=kind, answers=len(places), quartiles=quartiles)
