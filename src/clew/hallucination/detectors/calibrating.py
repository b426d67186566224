"""Refit a detector's calibration and threshold to other labeled answers: how often a model
hallucinates differs from one use to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from clew.base.errors import InputError
from clew.hallucination.detectors.companions import describe_origin
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.risk import Risk
from clew.hallucination.detectors.training.samples import PreprocessedData, score_batches
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.splits import SPLIT_NAMES
from clew.metrics import (
    PlattScale,
    best_threshold,
    expected_calibration_error,
    threshold_for_rate,
)

_FOLDS, _BATCH = 5, 64
# Entries of a method's results that another calibration and threshold do not change.
_UNCHANGED = ("auroc", "auprc")
# With fewer answers of a class, two numbers cannot be fitted to them.
FEWEST = 10


@dataclass(frozen=True, kw_only=True)
class LabeledRisks:
    """The risks that a detector gave to labeled answers; 1 is hallucinated. Those that were out of
    distribution (`is_far`) have the risk of the fallback."""

    risks: Float64[np.ndarray, " answers"]
    labels: Int[np.ndarray, " answers"]
    is_far: Bool[np.ndarray, " answers"]
    excluded: int = 0

    @classmethod
    def of(cls, risks: Sequence[Risk], labels: np.ndarray) -> "LabeledRisks":
        """Without the answers that were not checked."""
        known = np.array([risk.risk is not None for risk in risks], bool)
        values = np.array([np.nan if risk.risk is None else risk.risk for risk in risks])
        far = np.array([risk.state == "out_of_distribution" for risk in risks], bool)
        return cls(
            risks=values[known],
            labels=labels[known].astype(np.int8),
            is_far=far[known],
            excluded=int((~known).sum()),
        )

    def part(self, *, is_far: bool) -> "LabeledRisks":
        rows = self.is_far == is_far
        return LabeledRisks(
            risks=self.risks[rows], labels=self.labels[rows], is_far=self.is_far[rows]
        )

    @property
    def rarest(self) -> int:
        """The number of answers of the rarer class."""
        hallucinated = int(self.labels.sum())
        return min(hallucinated, len(self.labels) - hallucinated)


def assess_samples(detector: Detector, data: AnswerFeatures) -> LabeledRisks:
    """The risks of all answers in a folder of samples. Raises InputError if the detector was fitted
    on them, or if they are of another model or prompt."""
    origin = describe_origin(data, {})
    detector.refuse_other(origin.model, origin.prompt)
    if detector.kept.data.get("traces") == data.identity["sha256"]:
        raise InputError(
            f'the detector {detector.name} was fitted on the answers in "{data.folder}", so its '
            "risks look better there than they are: use other answers.",
            setting="samples",
            value=data.folder,
        )
    splits = [split for split in SPLIT_NAMES if len(data.labels[split])]
    risks = [risk for split in splits for risk in _assess_split(detector, data, split)]
    return LabeledRisks.of(risks, np.concatenate([data.labels[split] for split in splits]))


def _assess_split(detector: Detector, data: AnswerFeatures, split: str) -> list[Risk]:
    """A network reads its samples batch by batch."""
    found = None
    if detector.samples is not None:
        samples = PreprocessedData(folder=data.folder).open(detector.samples, split)
        found = score_batches(detector, Loader(samples, _BATCH, rank=Rank()))
    return detector.assess(StoredAnswers(data, split), found)


def refit(detector: Detector, answers: LabeledRisks, target_fpr: float | None) -> Detector:
    """Refit calibration and threshold: the threshold with the highest F1, or with at most
    `target_fpr` of the correct answers above it. The fallback keeps its own unless enough answers
    were out of distribution. `calibrated` has the figures; `ece_after` comes from fits that did not
    see the answers that they are measured on. Raises InputError for too few answers of a class."""
    checked, far = (answers.part(is_far=flag) for flag in (False, True))
    if checked.rarest < FEWEST:
        raise InputError(
            f"{int(checked.labels.sum()):,} of the {len(checked.labels):,} answers that were "
            f"checked are hallucinated, but calibration requires at least {FEWEST} correct and "
            f"{FEWEST} hallucinated ones: label more answers."
        )
    assert detector.calibration is not None
    calibration, threshold, after = _fit(detector.calibration, checked, target_fpr)
    changed = replace(detector, calibration=calibration, threshold=threshold)
    if detector.fallback is not None and far.rarest >= FEWEST:
        own, limit, _ = _fit(detector.fallback.calibration, far, target_fpr)
        fallback = replace(detector.fallback, calibration=own, threshold=limit)
        changed = replace(changed, fallback=fallback)
    risks = detector.calibration.convert(checked.risks, calibration)
    figures = {
        "answers": len(answers.labels),
        "out_of_distribution": len(far.labels),
        "excluded": answers.excluded,
        "ece_before": expected_calibration_error(checked.labels, checked.risks),
        "ece_after": expected_calibration_error(checked.labels, after),
        "threshold_before": detector.threshold,
        "threshold_after": threshold,
        **_rates(checked.labels, risks, threshold),
    }
    return _record(changed, figures)


def _rates(labels: np.ndarray, risks: np.ndarray, threshold: float) -> dict[str, float | None]:
    """What the threshold does to these answers; without any above it, there is no precision."""
    above, is_hallucinated = risks > threshold, labels == 1
    return {
        "false_positive_rate": float(above[~is_hallucinated].mean()),
        "recall": float(above[is_hallucinated].mean()),
        "precision": float(is_hallucinated[above].mean()) if above.any() else None,
    }


def _record(detector: Detector, figures: dict[str, Any]) -> Detector:
    """Say what it was calibrated on. What the test split measured with the calibration before does
    not describe this one."""
    results = {
        name: value
        for name, value in detector.metrics.items()
        if not name.startswith("test_") or name.removeprefix("test_").startswith(_UNCHANGED)
    }
    results["threshold"] = detector.threshold
    origin = replace(detector.kept, results=results, calibrated=figures)
    return replace(detector, metrics=results, origin=origin)


def _fit(
    scale: PlattScale, answers: LabeledRisks, target_fpr: float | None
) -> tuple[PlattScale, float, Float64[np.ndarray, " answers"]]:
    """The new calibration and threshold, and each answer's risk by a fit without it."""
    found = scale.refit(answers.labels, answers.risks)
    risks = scale.convert(answers.risks, found)
    if target_fpr is None:
        threshold = best_threshold(answers.labels, risks)
    else:
        threshold = threshold_for_rate(answers.labels, risks, false_positive_rate=target_fpr)
    unseen = np.empty_like(risks)
    fold = _assign_folds(answers.labels)
    for number in range(_FOLDS):
        own = fold == number
        other = scale.refit(answers.labels[~own], answers.risks[~own])
        unseen[own] = scale.convert(answers.risks[own], other)
    return found, threshold, unseen


def _assign_folds(labels: np.ndarray) -> np.ndarray:
    """Both classes in every fold, in the order of the answers."""
    fold = np.empty(len(labels), int)
    for one in (0, 1):
        rows = np.flatnonzero(labels == one)
        fold[rows] = np.arange(len(rows)) % _FOLDS
    return fold
