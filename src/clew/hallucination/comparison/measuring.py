"""Turn a method's scores into its table row: calibration and threshold on validation, metrics on
test. Nothing here reads a test label before everything is chosen."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clew.hallucination.comparison.methods import AnyMethod
from clew.hallucination.detectors.probes.method import Outcome
from clew.metrics import PlattScale, auroc, best_threshold, compare_paired, measure_scores

Row = dict[str, Any]
# With fewer answers of a class, a split supports neither a p-value nor a choice of the best.
FEWEST = 10
SIGNIFICANT = 0.05
_BESIDE = ("auprc", "f1", "accuracy", "ece", "aurc")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of results.json and the scores behind it: those of the seed with the median validation
    AUROC, the one at `place`. Probabilities are calibrated on validation, with `calibration`.
    `seed_scores` are the test scores of all seeds."""

    row: Row
    place: int
    calibration: PlattScale
    test_scores: np.ndarray
    seed_scores: tuple[np.ndarray, ...]
    validation_probabilities: np.ndarray
    test_probabilities: np.ndarray
    plan: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of the validation and test splits; 1 is hallucinated. `kept` are the positions of
    the test answers that are evaluated. `groups` are the question sets of the test answers, if the
    AUROC is the mean over several."""

    validation: np.ndarray
    test: np.ndarray
    kept: np.ndarray
    groups: np.ndarray | None = None

    @property
    def supports_choice(self) -> bool:
        """Whether validation has enough answers of both classes to call a method the best."""
        return count_rarer(self.validation) >= FEWEST

    @property
    def supports_tests(self) -> bool:
        """Whether the test answers are enough of both classes for a p-value."""
        return count_rarer(self.test) >= FEWEST


def count_rarer(labels: np.ndarray) -> int:
    """The number of answers of the rarer class."""
    hallucinated = int((labels > 0).sum())
    return min(hallucinated, len(labels) - hallucinated)


def measure_method(
    method: AnyMethod, seeds: Sequence[Outcome], labels: Labels, *, store: str, bytes_: float
) -> Measured:
    """The method's row for the test split of one store, without the pairwise differences."""
    on_validation = [auroc(labels.validation, seed.validation) for seed in seeds]
    middle = pick_median(on_validation)
    seed = seeds[middle]
    scale = PlattScale.fit(labels.validation, seed.validation)
    validation = scale.probabilities(seed.validation)
    every = tuple(one.tests[store][labels.kept] for one in seeds)
    scores = every[middle]
    test = scale.probabilities(scores)
    threshold = best_threshold(labels.validation, validation)
    measures = measure_scores(labels.test, test, threshold=threshold, scores=scores)
    row = {
        "method": method.name,
        "title": method.title,
        "family": method.family,
        "val_auroc": on_validation[middle],
        "test_auroc": measures.auroc,
        "test_auroc_ci": list(measures.auroc_ci),
        **{f"test_{name}": getattr(measures, name) for name in _BESIDE},
        "threshold": threshold,
        **over_seeds(method.is_seeded, [auroc(labels.test, one) for one in every]),
        "versus_best": None,
        "versus_perplexity": None,
        "parameters": seed.parameters,
        "train_seconds": seed.train_seconds,
        "ms_per_answer": seed.ms_per_answer,
        "bytes_per_answer": bytes_,
        "chosen": seed.chosen,
        "by_layer": seed.by_layer,
    }
    return Measured(
        row=row,
        place=middle,
        calibration=scale,
        test_scores=scores,
        seed_scores=every,
        validation_probabilities=validation,
        test_probabilities=test,
        plan=seed.plan,
    )


def pick_median(values: Sequence[float]) -> int:
    """The index of the median, of the lower one if there are two, so that a lucky run is not
    chosen."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def pick_best(measured: Sequence[Measured]) -> Measured:
    """The one with the highest validation AUROC."""
    return max(measured, key=lambda one: one.row["val_auroc"])


def add_differences(measured: Sequence[Measured], labels: Labels) -> None:
    """Fill in how each method differs from the best on validation and from perplexity."""
    best = pick_best(measured)
    plain = next((one for one in measured if one.row["method"] == "perplexity"), None)
    for one in measured:
        one.row["versus_best"] = differ(labels, one, best)
        one.row["versus_perplexity"] = None if plain is None else differ(labels, one, plain)


def differ(labels: Labels, one: Measured, other: Measured) -> dict[str, Any] | None:
    """By how much the first method's test AUROC is higher; None if both are the same method. There
    is no p-value if the test answers are too few."""
    if one is other:
        return None
    groups = labels.groups
    found = compare_paired(labels.test, one.test_scores, other.test_scores, groups=groups)
    return {**asdict(found), "p_value": found.p_value if labels.supports_tests else None}


def is_significant(versus: dict[str, Any] | None) -> bool:
    p_value = None if versus is None else versus["p_value"]
    return p_value is not None and p_value < SIGNIFICANT


def over_seeds(is_seeded: bool, test_aurocs: Sequence[float]) -> dict[str, Any]:
    if not is_seeded:
        return {"seeds": 1, "test_auroc_mean": None, "test_auroc_std": None}
    spread = float(np.std(test_aurocs, ddof=1)) if len(test_aurocs) > 1 else None
    return {
        "seeds": len(test_aurocs),
        "test_auroc_mean": float(np.mean(test_aurocs)),
        "test_auroc_std": spread,
    }
