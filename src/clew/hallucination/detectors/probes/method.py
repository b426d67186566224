"""The interface of detection methods: a method is fitted on the training answers, tuned on
validation, and then gives any answer a detection score (higher = more likely hallucinated; not the
label's score, where higher = correct).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Float

from clew.base.errors import InputError, StoreError
from clew.metrics import auroc

Family = Literal["baseline", "no training", "probe", "network"]
Scores = Float[np.ndarray, " answers"]


class Features(Protocol):
    """What a method reads: fields of the answers by split, in the same order."""

    @property
    def fields(self) -> frozenset[str]: ...

    @property
    def labels(self) -> dict[str, np.ndarray]: ...

    @property
    def layers(self) -> int: ...

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any: ...


class Scorer(Protocol):
    """Scores every answer of a split, of the store it was fitted on or of another one."""

    @property
    def parameters(self) -> int: ...

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
    """The result of a method. `by_layer` holds AUROCs, those of "test" only for plots;
    `score_seconds` is the time to score the test split, including reading its fields; `scorer` is
    what a detector keeps."""

    validation: Scores
    test: Scores
    parameters: int
    chosen: dict[str, Any]
    by_layer: dict[str, list[float]] | None
    train_seconds: float
    score_seconds: float
    scorer: Scorer | None = None


class Method(Protocol):
    """`needs` are the required fields, `also_reads` the optional ones, `learns_from` those that are
    required to fit it but not to score; `is_seeded`: scores depend on the seed."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def family(self) -> Family: ...

    @property
    def needs(self) -> tuple[str, ...]: ...

    @property
    def also_reads(self) -> tuple[str, ...]: ...

    @property
    def learns_from(self) -> tuple[str, ...]: ...

    @property
    def is_seeded(self) -> bool: ...

    def fit(self, data: Features, *, seed: int) -> Fitted: ...

    def run(self, data: Features, *, seed: int) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A method that is one function from the features to the fitted scorer; only a seeded one gets
    the seed."""

    name: str
    title: str
    family: Family
    needs: tuple[str, ...]
    learn: Callable[..., Fitted]
    is_seeded: bool = False
    also_reads: tuple[str, ...] = ()
    learns_from: tuple[str, ...] = ()

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

    def run(self, data: Features, *, seed: int) -> Outcome:
        return run(self, data, seed=seed)


def run(method: Method, data: Features, *, seed: int) -> Outcome:
    """Fit the method, then score the answers that it was not trained on."""
    start = perf_counter()
    fitted = method.fit(data, seed=seed)
    trained = perf_counter()
    test = fitted.score(data, "test")
    scored = perf_counter()
    return Outcome(
        validation=fitted.score(data, "validation"),
        test=test,
        parameters=fitted.parameters,
        chosen=fitted.chosen,
        by_layer=_layer_aurocs(fitted, data) if fitted.by_layer else None,
        train_seconds=trained - start + fitted.shared_seconds,
        score_seconds=scored - trained,
        scorer=fitted.scorer,
    )


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
