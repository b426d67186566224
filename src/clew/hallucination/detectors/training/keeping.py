"""Keep a trained network as a detector: calibrated on validation, measured on test."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from clew.base.errors import ClewError
from clew.base.progress import Note, Reporter
from clew.engine import FitResult
from clew.engine.feed import load_settings
from clew.hallucination.detectors.detector import Detector, unfold
from clew.hallucination.detectors.kept import DETECTOR_JSON, save_detector
from clew.hallucination.detectors.loading import KEPT, load_detector
from clew.hallucination.detectors.making import Companions, FittedMethod, make_detector
from clew.hallucination.detectors.training.samples import DetectorSamples, Scores, score_batches
from clew.hallucination.detectors.training.sources import DataSource, PreprocessedData
from clew.hallucination.detectors.training.task import Task
from clew.hallucination.samples.answers import AnswerFeatures
from clew.metrics import PlattScale, best_threshold, measure_scores


def keep_network(task: Task, fitted: FitResult, source: DataSource, reporter: Reporter) -> None:
    """Write the network's folder `detector`, if it has none. A note says why if that is not
    possible: its files are there, but nothing says which model the samples come from."""
    folder = task.folder / KEPT
    if (folder / DETECTOR_JSON).exists():
        return
    try:
        if not isinstance(source, PreprocessedData):
            raise ClewError('its samples are traces: create samples with "clew preprocess" first')
        save_detector(_make(task, fitted, source.folder), folder)
    except ClewError as error:
        reporter(Note(f"{task.title} is not kept as a detector: {error}"))


def _make(task: Task, fitted: FitResult, samples: Path) -> Detector:
    trained = load_detector(task.folder, fitted.plan.device)
    validation, test = (_score(trained, task.samples, fitted, s) for s in ("validation", "test"))
    labels = {name: split.index.labels > 0.5 for name, split in task.samples.splits.items()}
    calibration = PlattScale.fit(labels["validation"], validation)
    risks = calibration.probabilities(validation)
    threshold = best_threshold(labels["validation"], risks)
    measures = measure_scores(
        labels["test"], calibration.probabilities(test), threshold=threshold, scores=test
    )
    results: dict[str, Any] = {f"test_{k}": v for k, v in asdict(measures).items()}
    method = FittedMethod(
        name=task.kind.name,
        title=task.kind.title,
        family="network",
        calibration=calibration,
        threshold=threshold,
        results={**results, "threshold": threshold, "parameters": fitted.parameters},
        network=trained.network.cpu(),
        config=trained.config,
    )
    return make_detector(method, Companions.fit(AnswerFeatures(samples)))


def _score(trained: Detector, samples: DetectorSamples, fitted: FitResult, split: str) -> Scores:
    settings = load_settings(fitted.plan)
    return unfold(score_batches(trained, samples.open_whole(split, settings)))
