"""`evaluate_patterns`: how good a model is on photos that it has not seen."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import InputError, TrainingStoppedError
from clew.base.progress import Note, Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.texts import counted, list_some
from clew.engine.checkpoint import read_versions
from clew.engine.folders import make_folder
from clew.engine.plan import look_at_machine
from clew.patterns.photos import Fault, PhotoFolder, find_classes
from clew.patterns.photos.photo import refuse_equals
from clew.patterns.results_file import RESULTS, read_results_file, refuse_other_results
from clew.patterns.trained.model import (
    PatternModel,
    Prediction,
    load_classifier,
    predict_photos,
    read_results,
)
from clew.patterns.trained.tables import (
    EXCLUDED_FILE,
    OLD_EXCLUDED_FILE,
    PREDICTIONS_FILE,
    read_known_splits,
    write_excluded,
    write_predictions,
)
from clew.patterns.training.measuring import (
    measure,
    write_results,
)
from clew.storage.working_copy import optional_copy, working_copy

_TRAINED_ON = {
    "train": ("used in training", "the model was trained on this image"),
    "validation": ("used in validation", "the model's best epoch was selected on this image"),
}
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """Predictions for the photos to evaluate. `counted` are those that the metrics cover; `seen` is
    the number that the model was trained on, by split. If it was trained on all photos, they are
    counted anyway."""

    counted: list[Prediction]
    faults: list[Fault]
    seen: Counter[str]
    all_seen: bool


def usual_evaluation_folder(model: Path, data: Path) -> Path:
    """The default output folder, next to the model: one per folder of photos, even if two have the
    same name."""
    name = data.absolute().name or "photos"
    number, folder = 1, model / "evaluated" / name
    while _is_of_other(folder, data):
        number += 1
        folder = model / "evaluated" / f"{name} {number}"
    return folder


def _is_of_other(folder: Path, data: Path) -> bool:
    try:
        with working_copy(folder) as here:
            results = read_results_file(here / RESULTS)
        return results["data"]["folder"] != str(data.absolute())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True


def evaluate_patterns(
    model: Path,
    data: Path,
    *,
    out: Path | None = None,
    device: str | None = None,
    workers: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Evaluates the model in the folder `model` on photos in class folders; returns what
    results.json in `out` (nothing is written without one) holds. Both may be at URLs.

    Photos that the model was trained or validated on are excluded, unless there are no others.
    Raises InputError for classes that the model does not know and for folders without photos.
    """
    started, reporter = time.monotonic(), reporter or log_event
    with working_copy(model) as here, optional_copy(out) as place:
        if place is not None:
            refuse_other_results(place, "model", "test_accuracy")
        folder = find_classes(data, at_least=1)
        loaded = load_classifier(here, device)
        _refuse_unknown(folder, loaded)
        # In its own run, and in those whose weights it started from.
        splits = read_known_splits(here).items()
        seen = {digest: split for digest, split in splits if split in _TRAINED_ON}
        predict = partial(_predict, loaded, folder, workers, reporter, should_stop)
        judged = _judge(predict(besides=seen), seen)
        if judged.all_seen:
            used = "the model was trained or validated on all of these photos"
            reporter(Note(f"{used}: evaluating them anyway"))
            judged = _judge(predict(besides=()), seen)
        if not judged.counted:
            first = judged.faults[0]
            raise InputError(
                f'none of the photos in "{data}" can be used (the first, "{first.name}": '
                f"{first.reason}): use other photos."
            )
        results = _describe(loaded, folder, judged) | {"seconds": time.monotonic() - started}
        return results if place is None else _write(place, folder, judged, results)


def _write(
    out: Path, folder: PhotoFolder, judged: _Judged, results: dict[str, Any]
) -> dict[str, Any]:
    names = (EXCLUDED_FILE, OLD_EXCLUDED_FILE, PREDICTIONS_FILE, RESULTS)
    make_folder(out, *names, command="patterns evaluate")
    write_excluded(out, [*folder.faults, *judged.faults])
    named = [(one.photo.name, one.photo.label or "") for one in judged.counted]
    write_predictions(out, named, results["classes"], _stack(judged.counted))
    return write_results(out, results)


def _refuse_unknown(folder: PhotoFolder, model: PatternModel) -> None:
    unknown = [name for name in folder.classes if name not in model.classes]
    if not unknown:
        return
    named, known = (
        list_some([f'"{name}"' for name in names], _MOST_NAMED)
        for names in (unknown, model.classes)
    )
    raise InputError(
        f'"{folder.root}" has classes that the model in "{model.folder}" does not know: '
        f"{named}. It knows {known}. Rename or remove the folders; to "
        'train with the new classes, run "clew patterns train".'
    )


def _predict(
    model: PatternModel,
    folder: PhotoFolder,
    workers: int | None,
    reporter: Reporter,
    should_stop: Callable[[], bool],
    *,
    besides: Container[str],
) -> list[Prediction]:
    threads = workers if workers is not None else look_at_machine().cores
    predictions = []
    count = len(folder.photos)
    started = WorkStarted(
        noun="photos", planned=count, estimate=f"{counted(count, 'photo')} to evaluate"
    )
    with report_work(reporter, started):
        found = predict_photos(model, folder.photos, workers=threads, besides=besides)
        for prediction in found:
            predictions.append(prediction)
            reporter(WorkAdvanced())
            if should_stop():
                raise TrainingStoppedError(
                    f"stopped after {len(predictions):,} of {count:,} photos; nothing was written.",
                    is_resumable=False,
                )
    return predictions


def _judge(predictions: Sequence[Prediction], seen: dict[str, str]) -> _Judged:
    faults = [one.fault for one in predictions if one.fault is not None]
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for one in predictions:
        if one.digest is not None:
            groups[one.digest].append(one)
    excluded: dict[str, Fault] = {}
    for group in groups.values():
        excluded |= refuse_equals([one.photo for one in group])
    faults += excluded.values()
    usable = [one for one in predictions if one.digest and one.photo.name not in excluded]
    fresh = [one for one in usable if one.digest not in seen]
    counts = Counter(seen[one.digest] for one in usable if one.digest in seen)
    if fresh:
        faults += [
            one.photo.fault(*_TRAINED_ON[seen[one.digest]]) for one in usable if one.digest in seen
        ]
    return _Judged(
        counted=fresh or usable, faults=faults, seen=counts, all_seen=bool(usable) and not fresh
    )


def _describe(model: PatternModel, folder: PhotoFolder, judged: _Judged) -> dict[str, Any]:
    places = {name: place for place, name in enumerate(model.classes)}
    labels = np.array([places[one.photo.label or ""] for one in judged.counted], np.int64)
    counts = {"test": np.bincount(labels, minlength=len(places)).tolist()}
    kinds = Counter(fault.kind for fault in (*folder.faults, *judged.faults))
    trained = read_results(model.folder)
    return {
        "model": f"{model.folder.absolute()}",
        **measure(_stack(judged.counted), labels, model.classes, counts),
        "temperature": model.temperature,
        "image_size": model.image_size,
        "network": trained.get("network"),
        "trained_test_accuracy": trained.get("test_accuracy"),
        "data": {
            "folder": str(folder.root),
            "photos": len(judged.counted),
            "excluded": dict(kinds.most_common()),
            "other_files": folder.other_files,
            "seen": dict(judged.seen),
            "all_seen": judged.all_seen,
            "split_folders": folder.split_folders,
        },
        "versions": read_versions("pillow"),
    }


def _stack(predictions: Sequence[Prediction]) -> np.ndarray:
    return np.stack([one.probabilities for one in predictions if one.probabilities is not None])
