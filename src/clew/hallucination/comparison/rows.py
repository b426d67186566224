"""Turn a method's scores into its table row: calibration and threshold on validation, metrics on
test. Nothing here reads a test label before everything is chosen."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clew.hallucination.comparison.methods import AnyMethod
from clew.hallucination.comparison.saved import SeedScores
from clew.metrics import PlattScale, auroc, best_threshold, compare_paired, measure_scores

Row = dict[str, Any]
_BESIDE = ("auprc", "f1", "accuracy", "ece", "aurc")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of results.json and the scores behind it: those of the seed with the median validation
    AUROC, the one at `place`. Probabilities are calibrated on validation, with `calibration`."""

    row: Row
    place: int
    calibration: PlattScale
    test_scores: np.ndarray
    validation_probabilities: np.ndarray
    test_probabilities: np.ndarray
    plan: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of the validation and test splits; 1 is hallucinated. `kept` are the positions of
    the test answers that are evaluated."""

    validation: np.ndarray
    test: np.ndarray
    kept: np.ndarray


def measure_method(
    method: AnyMethod, seeds: Sequence[SeedScores], labels: Labels, *, store: str, bytes_: float
) -> Measured:
    """The method's row for the test split of one store, without the pairwise differences."""
    on_validation = [auroc(labels.validation, seed.validation) for seed in seeds]
    middle = pick_median(on_validation)
    seed = seeds[middle]
    scale = PlattScale.fit(labels.validation, seed.validation)
    validation = scale.probabilities(seed.validation)
    scores = seed.tests[store][labels.kept]
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
        **_over_seeds(method, [auroc(labels.test, s.tests[store][labels.kept]) for s in seeds]),
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


def add_differences(measured: Sequence[Measured], labels: np.ndarray) -> None:
    """Fill in how each method differs from the best on validation and from perplexity."""
    best = pick_best(measured)
    plain = next((one for one in measured if one.row["method"] == "perplexity"), None)
    for one in measured:
        one.row["versus_best"] = differ(labels, one, best)
        one.row["versus_perplexity"] = None if plain is None else differ(labels, one, plain)


def differ(labels: np.ndarray, one: Measured, other: Measured) -> dict[str, float] | None:
    """By how much the first method's test AUROC is higher; None if both are the same method."""
    if one is other:
        return None
    return asdict(compare_paired(labels, one.test_scores, other.test_scores))


def _over_seeds(method: AnyMethod, test_aurocs: Sequence[float]) -> dict[str, Any]:
    if not method.is_seeded:
        return {"seeds": 1, "test_auroc_mean": None, "test_auroc_std": None}
    spread = float(np.std(test_aurocs, ddof=1)) if len(test_aurocs) > 1 else None
    return {
        "seeds": len(test_aurocs),
        "test_auroc_mean": float(np.mean(test_aurocs)),
        "test_auroc_std": spread,
    }
