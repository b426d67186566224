"""Adapt a reader to one's own labeled answers, or train another language model in its way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.progress import Reporter, ignore_event
from clew.hallucination.detectors.adaptation import calibrate_unseen
from clew.hallucination.grounded.reader import Reader, load_reader
from clew.hallucination.grounded.synthetic import GroundedLabel
from clew.hallucination.grounded.training import (
    ReaderTraining,
    calibrate_reader,
    hold_out,
    label_answers,
    train_reader,
)
from clew.hallucination.llm.models import fingerprint, load_model
from clew.hallucination.questions import RowFormat, open_records, read_answers
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc, bootstrap_auroc, compare_paired

_HELD_OUT = 0.25
# A reader that is trained further changes less.
_FURTHER = 2e-4


def read_labeled(labeled: Any, format: RowFormat) -> tuple[list[GroundedLabel], int]:
    """The labeled answers with sources, and how many others there are."""
    source = open_records(str(labeled) if isinstance(labeled, Path) else labeled, format)
    return label_answers(read_answers(source), source.name)


def adapt_reader(
    name: str | Path,
    answers: Sequence[GroundedLabel],
    *,
    model: str | None = None,
    device: str = "auto",
    report: Reporter = ignore_event,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Reader, dict[str, Any]]:
    """A reader that was trained further on these answers, and what that changed on documents that
    were held out. With another `model`, a new one, trained on it from the start. If it ranks them
    worse than before, only risks and thresholds change. Raises InputError for too few answers."""
    before = load_reader(name, device=device)
    known = before.settings
    loaded = load_model(model or known.model["id"], dtype="float32", device=device)
    is_same = fingerprint(loaded.model) == known.model["fingerprint"]
    config = ReaderTraining(
        attention=known.attention,
        window=known.window,
        overlap=known.overlap,
        rank=known.rank,
        held_out=_HELD_OUT,
        learning_rate=_FURTHER if is_same else ReaderTraining.learning_rate,
    )
    start = before.adapter if is_same else None
    options: Any = {"report": report, "should_stop": should_stop}
    card = {"adapted_from": {**known.card, "model": known.model}}
    after = train_reader(loaded, answers, config, start=start, card=card, **options)
    _, unseen = hold_out(answers, _HELD_OUT)
    figures = _compare(before, after, unseen)
    if is_same and figures["auroc_after"] < figures["auroc_before"]:
        lost = figures["auroc_before"] - figures["auroc_after"]
        after = calibrate_reader(before, answers, answers)
        after.settings = replace(after.settings, card={**known.card, "recalibrated": len(answers)})
        figures = _compare(before, after, unseen)
        kept = f"trained on them, its AUROC on other documents is lower by {lost:.3f}"
        figures["kept_ranking"] = kept
    labels = {"labels": len(answers), "hallucinated": sum(one.hallucinated for one in answers)}
    thresholds = {"threshold_before": known.threshold, "threshold_after": after.settings.threshold}
    return after, {"kept_ranking": None, **figures, **labels, **thresholds, "unlabeled": 0}


def _compare(before: Reader, after: Reader, unseen: Sequence[GroundedLabel]) -> dict[str, Any]:
    """AUROC and calibration error of both on the same answers."""
    labels = np.array([one.hallucinated for one in unseen])
    groups = np.array([one.group for one in unseen])
    found: dict[str, Any] = {}
    risks = {}
    for name, reader in (("before", before), ("after", after)):
        logits = [logits for _, logits in reader.token_logits(unseen)]
        risks[name] = reader.settings.pool(logits)
        found[f"auroc_{name}"] = auroc(labels, risks[name])
        found[f"auroc_{name}_ci"] = bootstrap_auroc(labels, risks[name], clusters=groups)
    scaled = before.settings.calibration.probabilities(risks["before"])
    found["ece_before"] = expected_calibration_error(labels, scaled)
    # The reader itself is calibrated on these answers.
    scaled = calibrate_unseen(labels.astype(np.int64), risks["after"])
    found["ece_after"] = expected_calibration_error(labels, scaled)
    gain = compare_paired(labels, risks["after"], risks["before"], clusters=groups)
    return {**found, "gain": gain.difference, "gain_ci": (gain.low, gain.high)}
