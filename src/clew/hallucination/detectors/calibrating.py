"""Refit a detector's calibration and threshold to other labeled answers: how often a model
hallucinates differs from one use to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from clew.errors import InputError
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.registry import SampleKind
from clew.hallucination.detectors.risk import Risk
from clew.hallucination.detectors.training.sources import PreprocessedData
from clew.hallucination.samples.reading.answers import AnswerFeatures
from clew.loading.loader import Loader
from clew.loading.splits import SPLIT_NAMES
from clew.metrics import (
    PlattScale,
    best_threshold,
    expected_calibration_error,
    threshold_for_rate,
)

_BINS, _FOLDS = 10, 5
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


@dataclass(frozen=True, kw_only=True)
class Refit:
    """A detector with another calibration. `ece_after` comes from fits that have not seen the
    answers that they are measured on."""

    detector: Detector
    answers: int
    out_of_distribution: int
    excluded: int
    ece_before: float
    ece_after: float
    threshold_before: float
    threshold_after: float


def assess_samples(detector: Detector, data: AnswerFeatures) -> LabeledRisks:
    """The risks of all answers in a folder of samples. Raises InputError if the detector was fitted
    on them, or if they are of another model."""
    detector.refuse_other(data.identity["model"])
    if detector.kept.data.get("traces") == data.identity["sha256"]:
        raise InputError(
            f'the detector {detector.name} was fitted on the answers in "{data.folder}", so its '
            "risks look better there than they are: use other answers.",
            setting="samples",
            value=data.folder,
        )
    splits = [split for split in SPLIT_NAMES if len(data.labels[split])]
    risks = [risk for split in splits for risk in detector.assess(_Stored(data, split))]
    return LabeledRisks.of(risks, np.concatenate([data.labels[split] for split in splits]))


def refit(detector: Detector, answers: LabeledRisks, target_fpr: float | None) -> Refit:
    """Refit calibration and threshold: the threshold with the highest F1, or with at most
    `target_fpr` of the correct answers above it. The fallback keeps its own unless enough answers
    were out of distribution. Raises InputError for too few answers of a class."""
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
    return Refit(
        detector=changed,
        answers=len(answers.labels),
        out_of_distribution=len(far.labels),
        excluded=answers.excluded,
        ece_before=_measure(checked.labels, checked.risks),
        ece_after=_measure(checked.labels, after),
        threshold_before=detector.threshold,
        threshold_after=threshold,
    )


def _fit(
    scale: PlattScale, answers: LabeledRisks, target_fpr: float | None
) -> tuple[PlattScale, float, Float64[np.ndarray, " answers"]]:
    """The new calibration and threshold, and each answer's risk by a fit without it."""
    found = scale.refit(answers.labels, answers.risks)
    risks = _change(scale, found, answers.risks)
    if target_fpr is None:
        threshold = best_threshold(answers.labels, risks)
    else:
        threshold = threshold_for_rate(answers.labels, risks, false_positive_rate=target_fpr)
    unseen = np.empty_like(risks)
    fold = _assign_folds(answers.labels)
    for number in range(_FOLDS):
        own = fold == number
        other = scale.refit(answers.labels[~own], answers.risks[~own])
        unseen[own] = _change(scale, other, answers.risks[own])
    return found, threshold, unseen


def _assign_folds(labels: np.ndarray) -> np.ndarray:
    """Both classes in every fold, in the order of the answers."""
    fold = np.empty(len(labels), int)
    for one in (0, 1):
        rows = np.flatnonzero(labels == one)
        fold[rows] = np.arange(len(rows)) % _FOLDS
    return fold


def _change(old: PlattScale, new: PlattScale, risks: np.ndarray) -> np.ndarray:
    """The risks under another calibration of the same scores."""
    sure = np.clip(risks, 1e-9, 1 - 1e-9)
    placed = (np.log(sure / (1 - sure)) - old.intercept) / old.slope
    return 1 / (1 + np.exp(-(new.slope * placed + new.intercept)))


def _measure(labels: np.ndarray, risks: np.ndarray) -> float:
    return expected_calibration_error(labels, risks, bins=_BINS, equal_mass=True)


class _Stored(StoredAnswers):
    """A split of a folder of samples, with the batch of a network."""

    def batch(self, kind: SampleKind) -> Any:
        assert isinstance(self.data, AnswerFeatures)
        samples = PreprocessedData(folder=self.data.folder).open(kind, self.split)
        return next(iter(Loader(samples, len(samples))))
