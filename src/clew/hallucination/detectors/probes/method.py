"""The interface of detection methods: a method is fitted on the training answers, tuned on
validation, and then gives any answer a detection score (higher = more likely hallucinated; not the
label's score, where higher = correct).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float

from clew.base.errors import InputError, StoreError
from clew.hallucination.traces.schema import BY_HEAD
from clew.metrics.ranking import auroc

Family = Literal["baseline", "no training", "probe", "network"]
Scores = Float[np.ndarray, " answers"]
T = TypeVar("T")


class Features(Protocol):
    """What a method reads: fields of the answers by split, in the same order."""

    @property
    def fields(self) -> frozenset[str]: ...

    @property
    def labels(self) -> dict[str, np.ndarray]: ...

    @property
    def layers(self) -> int: ...

    @property
    def without_attention(self) -> tuple[int, ...]: ...

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any: ...


# The classes of fitted methods that detectors keep, by their name in a file.
SCORERS: dict[str, type[Any]] = {}


@dataclass(frozen=True, eq=False)
class Wrapped:
    """Data in another form: its fields and layers are those of `data`."""

    data: Features

    @property
    def fields(self) -> frozenset[str]:
        return self.data.fields

    @property
    def layers(self) -> int:
        return self.data.layers

    @property
    def without_attention(self) -> tuple[int, ...]:
        return self.data.without_attention


# The fields with a value per head: of those layers that have attention.
OF_HEADS = (*BY_HEAD, "lookback")


def layers_of(field: str, data: Features) -> list[int]:
    """The layers that a field has values of, in their order: it is read by their places in it."""
    without = data.without_attention if field in OF_HEADS else ()
    return [layer for layer in range(data.layers) if layer not in without]


class Scorer(Protocol):
    """Scores every answer of a split, of the store it was fitted on or of another one. `fields` are
    what it reads: those of its class, `reads`, if it does not say otherwise. A class with a `kind`
    can be kept in a detector."""

    reads: ClassVar[tuple[str, ...]] = ()
    # On few values, NumPy's operations take a fraction of the time of PyTorch's.
    has_small_steps: ClassVar[bool] = False

    def __init_subclass__(cls, *, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            SCORERS[kind] = cls

    @property
    def parameters(self) -> int:
        return 0

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.reads)

    def score(self, data: Features, split: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted method. `by_layer` are its variants at every layer, for plots; `shared_seconds` is
    the time of required work that another method had already done."""

    scorer: Scorer
    chosen: dict[str, Any] = field(default_factory=dict)
    by_layer: Sequence[Scorer] = ()
    shared_seconds: float = 0.0

    @property
    def parameters(self) -> int:
        return self.scorer.parameters

    def score(self, data: Features, split: str) -> Scores:
        """Score every answer of a split. Raises StoreError for a non-finite score."""
        scores = np.asarray(self.scorer.score(data, split), np.float32)
        strange = np.flatnonzero(~np.isfinite(scores))
        if len(strange):
            raise StoreError(
                f"{len(strange):,} of {len(scores):,} answers of the {split} split, e.g. number "
                f"{strange[0]}, contain NaN or infinity in the fields that are scored: create the "
                'samples again with "clew preprocess".'
            )
        return scores


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a method with one seed: the uncalibrated risks (higher = more likely
    hallucinated) on the validation split and on the test split of every store, and what they cost.
    `by_layer` holds AUROCs, those of "test" only for plots; `ms_per_answer` is the time to score a
    test answer, including reading its fields. `plan` is the hardware plan of a network; `scorer` is
    what a detector keeps of a probe that was just fitted."""

    validation: Scores
    tests: dict[str, Scores]
    parameters: int
    chosen: dict[str, Any]
    by_layer: dict[str, list[float]] | None
    train_seconds: float
    ms_per_answer: float
    plan: dict[str, Any] | None = None
    scorer: Scorer | None = None

    @property
    def test(self) -> Scores:
        """The scores on the first store."""
        return next(iter(self.tests.values()))


@dataclass(frozen=True)
class Method:
    """A method is one function, `learn`, from the features to the fitted scorer; only a seeded one
    (scores depend on the seed) gets the seed. `needs` are the required fields, `also_reads` the
    optional ones, `learns_from` those that are required to fit it but not to score. `refuses` says
    why it cannot run on some answers that have all of them."""

    name: str
    title: str
    family: Family
    needs: tuple[str, ...]
    learn: Callable[..., Fitted]
    _: KW_ONLY
    is_seeded: bool = False
    also_reads: tuple[str, ...] = ()
    learns_from: tuple[str, ...] = ()
    refuses: Callable[[Any], str | None] | None = None

    def fit(self, data: Features, *, seed: int) -> Fitted:
        """Fit the method. Raises InputError for a missing field, or a split with a single class."""
        missing = sorted({*self.needs, *self.learns_from} - data.fields)
        if missing:
            raise InputError(
                f"{self.name} requires {', '.join(missing)}, which these answers do not have: "
                "omit the method, or extract and preprocess them again."
            )
        _refuse_one_class(data)
        return self.learn(data, seed=seed) if self.is_seeded else self.learn(data)

    def run(
        self, data: Features, tests: Mapping[str, Features] | None = None, *, seed: int
    ) -> Outcome:
        """Fit the method, then score the answers that it was not trained on: the test split of
        every store in `tests`. [default: of `data`]"""
        tests = tests or {"test": data}
        start = perf_counter()
        fitted = self.fit(data, seed=seed)
        trained = perf_counter()
        scores = {name: fitted.score(one, "test") for name, one in tests.items()}
        # A scorer may know answers from before: its cost is that of all.
        spared = getattr(fitted.scorer, "spared_seconds", 0.0)
        seconds = perf_counter() - trained + spared
        is_alone = [*tests.values()] == [data]
        return Outcome(
            validation=fitted.score(data, "validation"),
            tests=scores,
            parameters=fitted.parameters,
            chosen=fitted.chosen,
            by_layer=_layer_aurocs(fitted, data) if fitted.by_layer and is_alone else None,
            train_seconds=trained - start + fitted.shared_seconds,
            ms_per_answer=1000 * seconds / max(1, sum(map(len, scores.values()))),
            scorer=fitted.scorer,
        )


def shared(work: Callable[[Features], T]) -> Callable[[Features], tuple[T, float]]:
    """Do the work once per store, for several methods or seeds: the result, and the seconds that
    it took if it had been done before."""
    known: WeakKeyDictionary[Features, tuple[T, float]] = WeakKeyDictionary()

    def find(data: Features) -> tuple[T, float]:
        if data in known:
            return known[data]
        start = perf_counter()
        found = work(data)
        known[data] = found, perf_counter() - start
        return found, 0.0

    return find


METHODS: dict[str, Method] = {}
_Learn = TypeVar("_Learn", bound=Callable[..., Fitted])


def method(
    name: str, title: str, family: Family, *needs: str, **options: Any
) -> Callable[[_Learn], _Learn]:
    """Make the decorated function the `learn` of a method; `options` are further ones of it."""

    def register(learn: _Learn) -> _Learn:
        METHODS[name] = Method(name, title, family, needs, learn, **options)
        return learn

    return register


def _layer_aurocs(fitted: Fitted, data: Features) -> dict[str, list[float]]:
    return {
        split: [auroc(data.labels[split], probe.score(data, split)) for probe in fitted.by_layer]
        for split in ("validation", "test")
    }


def _refuse_one_class(data: Features) -> None:
    for split in ("train", "validation"):
        hallucinated = int(data.labels[split].sum())
        if hallucinated in (0, len(data.labels[split])):
            raise InputError(
                f"{hallucinated:,} of the {len(data.labels[split]):,} answers in the {split} "
                "split are hallucinated, but a method requires both correct and hallucinated "
                "ones. Use more questions, or give that split a larger share."
            )
