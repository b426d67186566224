"""How good a model is on photos (accuracy with its interval, class by class, calibration), and
results.json, which says so and how the model was made."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

from clew.engine import FitResult
from clew.engine.identity import read_versions
from clew.errors import StoreError
from clew.metrics import expected_calibration_error
from clew.patterns.trained.model import RESULTS
from clew.storage.writing import replace_file

_Z = 1.959963984540054  # of 95% of a normal distribution
# Logits are never scaled by more: beyond, a handful of photos would speak for all others.
_COLDEST, _HOTTEST = 0.1, 10.0
_STEPS = 60
# What photos are read with, besides what every training stands on.
_LIBRARY = "pillow"

Logits = Float[np.ndarray, "photos classes"]
Places = Int64[np.ndarray, " photos"]


@dataclass(frozen=True, kw_only=True)
class PhotoMeasures:
    """Figures over photos of known classes; `confusion` counts them by true class (row) and
    predicted class (column)."""

    photos: int
    accuracy: float
    interval: tuple[float, float]
    macro_f1: float
    loss: float
    calibration_error: float
    confusion: Int64[np.ndarray, "classes classes"]

    def describe_class(self, place: int) -> dict[str, Any]:
        """Precision, recall and F1; None where there are no photos to tell them from."""
        right = int(self.confusion[place, place])
        called, photos = int(self.confusion[:, place].sum()), int(self.confusion[place].sum())
        return {
            "precision": right / called if called else None,
            "recall": right / photos if photos else None,
            "f1": 2 * right / (called + photos) if photos else None,
        }


def measure(probabilities: Float[np.ndarray, "photos classes"], labels: Places) -> PhotoMeasures:
    """There is one photo at least."""
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
    """The share that is right lies in between, 95 times of 100 (Wilson, 1927): also where all or
    none are right, and for few photos."""
    share, spread = right / count, _Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return 0.0 if not right else centre - half, 1.0 if right == count else centre + half


def fit_temperature(logits: Logits, labels: Places) -> float:
    """What logits are to be divided by for their probabilities to mean what they say (Guo et al.,
    2017): where the likelihood of these photos is greatest.

    One photo that is wrong is counted beside them, spread over all: ten photos that are all right
    do not make a model sure of everything.
    """
    scores, found = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    unknown = 1 / (len(found) + 1)

    def loss(exponent: float) -> float:
        likely = (scores / math.exp(exponent)).log_softmax(dim=1)
        own = likely.gather(1, found[:, None]).mean()
        return float(-(1 - unknown) * own - unknown * likely.mean())

    return math.exp(_find_lowest(loss, math.log(_COLDEST), math.log(_HOTTEST)))


def _find_lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search: the loss has one valley in the temperature's logarithm."""
    share = (math.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        left, right = high - share * (high - low), low + share * (high - low)
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _macro_f1(confusion: Int64[np.ndarray, "classes classes"]) -> float:
    """The mean over the classes that there are photos of."""
    photos, called = confusion.sum(1), confusion.sum(0)
    there = photos > 0
    return float((2 * np.diag(confusion)[there] / (photos + called)[there]).mean())


def refuse_other_results(folder: Path, *wanted: str) -> None:
    """Raises StoreError when there is a results.json without these figures."""
    path = folder / RESULTS
    if not path.exists():
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete it (a model beside it is not touched, and '
            f"the same command writes it again), or choose another `out`."
        ) from None
    if not isinstance(there, dict) or not set(wanted) <= there.keys():
        raise StoreError(f'"{path}" is that of something else: choose another `out`.')


def describe_test(measures: PhotoMeasures) -> dict[str, Any]:
    """The figures of a test or an evaluation, by their names in results.json."""
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
    """A row a class; `counts` are its photos, by split."""
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
    """Gives them as they are read back: there are no tuples in JSON."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    # The name of a folder need not be text.
    replace_file(folder / RESULTS, f"{text}\n".encode("utf-8", "backslashreplace"))
    return json.loads(text)
