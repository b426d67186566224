"""What follows a training: probabilities that mean what they say, figures, tables, a picture."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from clew.engine import FitResult
from clew.engine.curves import draw_curves
from clew.engine.folders import CURVES
from clew.patterns.classifier import PatternClassifier
from clew.patterns.photos import SPLITS
from clew.patterns.trained.model import RESULTS, PatternModel, read_results, softmax
from clew.patterns.training.measures import Measures, fit_temperature, measure
from clew.patterns.training.results import (
    describe_classes,
    describe_fit,
    describe_test,
    describe_versions,
    write_results,
)
from clew.patterns.training.tables import write_predictions
from clew.patterns.training.task import Task

_BATCH = 128


def finish(task: Task, classifier: PatternClassifier, fitted: FitResult) -> dict[str, Any]:
    """Measure the model and write all that is told of it, results.json last: where that is, all is
    there. Gives its content."""
    folder = task.config.output_dir
    if (folder / RESULTS).exists():
        return read_results(folder)
    photos, model = task.photos, _wrap(task, classifier)
    labels = {split: photos.labels[photos.places(split)] for split in SPLITS}
    logits = {split: _score(model, task, split) for split in ("validation", "test")}
    temperature = fit_temperature(logits["validation"], labels["validation"])
    found = {split: softmax(values, temperature) for split, values in logits.items()}
    reached = {split: measure(found[split], labels[split]) for split in found}
    photos.write_tables(folder)  # names may be others than when the run was begun
    _write_predictions(folder, task, found["test"])
    _draw(folder, task, fitted, reached["test"])
    return write_results(folder, _describe(task, fitted, temperature, reached))


def _wrap(task: Task, classifier: PatternClassifier) -> PatternModel:
    return PatternModel(
        folder=task.config.output_dir,
        classes=task.photos.classes,
        image_size=task.photos.size.value,
        network=classifier.network.eval(),
        temperature=1.0,
        device=next(classifier.parameters()).device,
    )


def _score(model: PatternModel, task: Task, split: str) -> Float32[np.ndarray, "photos classes"]:
    batches = task.samples.open_whole(split, _BATCH)
    return np.concatenate([model.logits(batch["image"]) for batch in batches])


def _write_predictions(folder: Path, task: Task, found: np.ndarray) -> None:
    photos = [task.photos.cached.photos[place] for place in task.photos.places("test")]
    named = [(photo.name, photo.label or "") for photo in photos]
    write_predictions(folder, named, task.photos.classes, found)


def _draw(folder: Path, task: Task, fitted: FitResult, test: Measures) -> None:
    draw_curves(
        folder / CURVES,
        fitted.history,
        title=f"{task.network}, test accuracy {test.accuracy:.1%}",
        best_epoch=fitted.best_epoch,
        figure_name="accuracy",
    )


def _describe(
    task: Task, fitted: FitResult, temperature: float, reached: dict[str, Measures]
) -> dict[str, Any]:
    photos, test = task.photos, reached["test"]
    counts = {split: photos.count_classes(split) for split in SPLITS}
    return {
        **describe_test(test),
        "val_accuracy": reached["validation"].accuracy,
        **describe_fit(fitted),
        "classes": list(photos.classes),
        "per_class": describe_classes(photos.classes, test, counts),
        "confusion": test.confusion.tolist(),
        "temperature": temperature,
        "image_size": photos.size.value,
        "network": task.network,
        "pretrained": task.config.pretrained,
        "augment": asdict(task.augment),
        "loss": asdict(task.loss),
        "train": asdict(task.train),
        "data": photos.describe(),
        "started_from": str(task.start.folder) if task.start else None,
        "seed": task.train.seed,
        "versions": describe_versions(),
    }
