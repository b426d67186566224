"""How good a model is on photos (accuracy with its interval, per-class metrics, calibration), and
results.json, which records that and how the model was trained."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

from clew.base.errors import StoreError
from clew.base.typed_json import to_json
from clew.engine import FitResult
from clew.engine.identity import read_versions
from clew.metrics import expected_calibration_error
from clew.patterns.results_file import read_results_file
from clew.patterns.trained.model import RESULTS
from clew.storage.writing import replace_json

_Z = 1.959963984540054  # the 97.5% quantile of the normal distribution
# Limits of the temperature: beyond them, a handful of photos would dominate.
_COLDEST, _HOTTEST = 0.1, 10.0
_STEPS = 60
# What photos are read with, besides the libraries every run uses.
_LIBRARY = "pillow"

Logits = Float[np.ndarray, "photos classes"]
Places = Int64[np.ndarray, " photos"]


@dataclass(frozen=True, kw_only=True)
class PhotoMeasures:
    """Metrics over photos of known classes; `confusion` counts them by true class (row) and
    predicted class (column)."""

    photos: int
    accuracy: float
    interval: tuple[float, float]
    macro_f1: float
    loss: float
    calibration_error: float
    confusion: Int64[np.ndarray, "classes classes"]

    def describe_class(self, place: int) -> dict[str, Any]:
        """Precision, recall and F1; None without photos to compute them from."""
        right = int(self.confusion[place, place])
        called, photos = int(self.confusion[:, place].sum()), int(self.confusion[place].sum())
        return {
            "precision": right / called if called else None,
            "recall": right / photos if photos else None,
            "f1": 2 * right / (called + photos) if photos else None,
        }


def measure(probabilities: Float[np.ndarray, "photos classes"], labels: Places) -> PhotoMeasures:
    """Compute the metrics of at least one photo."""
    predicted = probabilities.argmax(1)
    right = predicted == labels
    count = probabilities.shape[1]
    confusion = np.bincount(labels * count + predicted, minlength=count * count)
    confusion = confusion.reshape(count, count)
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return PhotoMeasures(
        photos=len(labels),
        accuracy=float(right.mean()),
        interval=wilson_interval(int(right.sum()), len(labels)),
        macro_f1=_macro_f1(confusion),
        loss=float(-np.log(own.clip(np.finfo(np.float32).tiny)).mean()),
        calibration_error=expected_calibration_error(
            right.astype(np.int64), probabilities.max(1).clip(0, 1)
        ),
        confusion=confusion,
    )


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """The 95% confidence interval of an accuracy (Wilson, 1927), which also holds when all or none
    are correct, and for few photos."""
    share, spread = right / count, _Z**2 / count
    center = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return 0.0 if not right else center - half, 1.0 if right == count else center + half


def fit_temperature(logits: Logits, labels: Places) -> float:
    """The temperature that calibrates the logits (Guo et al., 2017), by maximum likelihood on these
    photos.

    One misclassified photo, spread over all, is added: ten photos that are all correct do not make
    a model certain of everything.
    """
    scores, found = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    unknown = 1 / (len(found) + 1)

    def loss(exponent: float) -> float:
        likely = (scores / math.exp(exponent)).log_softmax(dim=1)
        own = likely.gather(1, found[:, None]).mean()
        return float(-(1 - unknown) * own - unknown * likely.mean())

    return math.exp(_find_lowest(loss, math.log(_COLDEST), math.log(_HOTTEST)))


def _find_lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search: the loss has a single minimum in the temperature's logarithm."""
    share = (math.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        left, right = high - share * (high - low), low + share * (high - low)
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _macro_f1(confusion: Int64[np.ndarray, "classes classes"]) -> float:
    """The mean over the classes that have photos."""
    photos, called = confusion.sum(1), confusion.sum(0)
    there = photos > 0
    return float((2 * np.diag(confusion)[there] / (photos + called)[there]).mean())


def refuse_other_results(folder: Path, *wanted: str) -> None:
    """Raise StoreError if the folder has a results.json without the `wanted` keys: something else
    wrote it."""
    path = folder / RESULTS
    if not path.exists():
        return
    try:
        there = read_results_file(path)
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete it and run the same command again to '
            "re-create it (the model beside it is kept), or choose another `out`."
        ) from None
    if not set(wanted) <= there.keys():
        raise StoreError(f'"{path}" was not written by this command: choose another `out`.')


def describe_test(measures: PhotoMeasures) -> dict[str, Any]:
    """The metrics of a test or an evaluation, by their names in results.json."""
    return {
        "test_accuracy": measures.accuracy,
        "test_accuracy_ci": list(measures.interval),
        "test_macro_f1": measures.macro_f1,
        "test_loss": measures.loss,
        "test_ece": measures.calibration_error,
        "test_photos": measures.photos,
    }


def describe_classes(
    classes: Sequence[str], measures: PhotoMeasures, counts: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """One row per class; `counts` are its photos, by split."""
    return [
        {
            "class": name,
            **measures.describe_class(place),
            **{split: of[place] for split, of in counts.items()},
        }
        for place, name in enumerate(classes)
    ]


def describe_fit(fitted: FitResult) -> dict[str, Any]:
    return {
        "best_epoch": fitted.best_epoch,
        "epochs_run": len(fitted.history),
        "seconds": fitted.seconds,
        "images_per_second": fitted.samples_per_second,
        "data_wait_share": fitted.data_wait_share,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": fitted.parameters,
        "plan": fitted.plan.to_dict(),
    }


def describe_versions() -> dict[str, str]:
    return read_versions(_LIBRARY)


def write_results(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Write results.json; returns the results as they read back (JSON has no tuples)."""
    replace_json(folder / RESULTS, results)
    return json.loads(to_json(results))
