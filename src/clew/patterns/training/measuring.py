"""How good a trained network is: its outputs for the photos of each split, metrics and calibration,
photos of none of the classes, and the map of the photos."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from clew.base.cores import count_cores
from clew.base.cpu import map_on_cores
from clew.base.typed_json import to_json
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc
from clew.patterns.cache.samples import ImageSamples
from clew.patterns.photo_map.block import MOST_THUMBNAILS, draw_sheet
from clew.patterns.photo_map.layout import choose_shown, lay_out
from clew.patterns.photos import SPLITS
from clew.patterns.results_file import RESULTS
from clew.patterns.trained.model import Outputs, PatternModel
from clew.patterns.trained.tables import MapRow, write_map
from clew.patterns.trained.unknown import Spread, UnknownModel, calibrate, find_spread, fit_space
from clew.patterns.training.start import TrainingPhotos
from clew.storage.writing import replace_json

# Small batches stay in a core's cache: there they take half of the time of large ones.
_BATCH, _BATCH_ON_CPU = 128, 8
# Enough for means, a covariance and neighbors. Without a GPU, a minute for a small network.
_MOST_TRAINING, _MOST_TRAINING_ON_CPU, _MOST_HELD_OUT = 4_000, 2_000, 10_000
# Of the validation photos, the share that is marked as unknown, as in `identify`.
_MARKED = 0.05
# Many classes are held out in this many groups, so that it takes seconds.
_MOST_GROUPS = 10
_FEWEST_CLASSES = 3  # one is held out, and the others must differ from each other
Labels = Int64[np.ndarray, " photos"]
# Limits of the temperature: beyond them, a handful of photos would dominate.
_COLDEST, _HOTTEST = 0.1, 10.0
Logits = Float[np.ndarray, "photos classes"]
Features = Float32[np.ndarray, "photos features"]
MOST_ON_MAP = 6_000
# The probability of a class below which a label is suspect.
_UNLIKELY = 0.05


@dataclass(frozen=True, kw_only=True)
class SplitOutputs:
    """The photos of one split: their indices among all photos, and the network's logits. Features
    are kept of some of them, those at `chosen`."""

    places: Int64[np.ndarray, " photos"]
    logits: Float32[np.ndarray, "photos classes"]
    chosen: Int64[np.ndarray, " some"]
    features: Float32[np.ndarray, "some features"]


def run_split(
    model: PatternModel, photos: TrainingPhotos, samples: ImageSamples, split: str
) -> SplitOutputs:
    """Run the network on a split; on some photos only of the training split."""
    places, on_cpu = photos.places(split), model.device.type == "cpu"
    if split == "train":
        model = replace(model, looks_closer=False)  # it would take time and change next to nothing
        most = _MOST_TRAINING_ON_CPU if on_cpu else _MOST_TRAINING
        places = places[choose_shown(photos.labels[places], most)]
    kept = choose_shown(photos.labels[places], _MOST_HELD_OUT)
    is_kept = np.isin(np.arange(len(places)), kept)
    size = _BATCH_ON_CPU if on_cpu else _BATCH
    batches = [slice(begin, begin + size) for begin in range(0, len(places), size)]

    def run(batch: slice) -> Outputs:
        found = model.outputs(samples.read(places[batch]))
        return Outputs(found.logits, found.features[is_kept[batch]])

    # On a CPU every core runs batches of its own.
    found = map_on_cores(run, batches, count_cores()) if on_cpu else map(run, batches)
    logits, features = map(np.concatenate, zip(*found, strict=True))
    return SplitOutputs(places=places, logits=logits, chosen=places[kept], features=features)


def fit_unknown(
    outputs: Mapping[str, SplitOutputs],
    labels: Labels,
    classes: Sequence[str],
    device: torch.device | None = None,
) -> tuple[UnknownModel | None, dict[str, Any] | None]:
    """Which photos are unlike every class, fitted on the features of the training photos and
    calibrated on the validation photos, and how well that works on the test photos, as in
    results.json. `labels` are those of all photos. None with too few validation photos."""
    train, held_out = outputs["train"], outputs["validation"]
    spread = find_spread(train.features, labels[train.chosen], device)
    space = fit_space(train.features, labels[train.chosen], spread)
    unknown = calibrate(space, held_out.features)
    if unknown is None:
        return None, None
    rows = hold_classes_out(outputs, labels, classes, spread)
    known = [row["auroc"] for row in rows if row["auroc"] is not None]
    return unknown, {
        "validation_photos": len(held_out.features),
        "marked_share": _MARKED,
        "test_marked": _find_marked(unknown, outputs["test"].features),
        "auroc": float(np.mean(known)) if known else None,
        "held_out_classes": rows,
    }


def hold_classes_out(
    outputs: Mapping[str, SplitOutputs], labels: Labels, classes: Sequence[str], spread: Spread
) -> list[dict[str, Any]]:
    """One row per class: how well its test photos are told from those of the others, when its
    training photos are excluded from the distances. The network was trained on all classes."""
    trained = np.unique(labels[outputs["train"].chosen])
    if len(trained) < _FEWEST_CLASSES:
        return []
    groups = [trained[first::_MOST_GROUPS] for first in range(min(_MOST_GROUPS, len(trained)))]
    rows = {
        label: row for group in groups for label, row in _hold_out(outputs, labels, group, spread)
    }
    return [{"class": classes[label], **rows[label]} for label in sorted(rows)]


def _hold_out(
    outputs: Mapping[str, SplitOutputs],
    labels: Labels,
    group: Int64[np.ndarray, " classes"],
    spread: Spread,
) -> Iterator[tuple[int, dict[str, Any]]]:
    train, held_out, test = (outputs[split] for split in ("train", "validation", "test"))
    others, kept = (~np.isin(labels[one.chosen], group) for one in (train, held_out))
    space = fit_space(train.features[others], labels[train.chosen][others], spread)
    model = calibrate(space, held_out.features[kept])
    is_known = ~np.isin(labels[test.chosen], group)
    distances = None if model is None else model.distances(test.features).astype(np.float64)
    for label in group.tolist():
        is_unknown = labels[test.chosen] == label
        row: dict[str, Any] = {"photos": int(is_unknown.sum()), "auroc": None, "found": None}
        if model is not None and distances is not None and is_unknown.any() and is_known.any():
            asked = is_known | is_unknown
            row["auroc"] = float(auroc(is_unknown[asked].astype(np.int64), distances[asked]))
            row["found"] = _find_marked(model, test.features[is_unknown])
        yield label, row


def _find_marked(model: UnknownModel, features: Features) -> float | None:
    """The share of the photos that is marked as unknown."""
    return float((model.typicality(features) < _MARKED).mean()) if len(features) else None


def measure(
    probabilities: Float[np.ndarray, "photos classes"],
    labels: Labels,
    classes: Sequence[str],
    counts: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """The metrics of at least one photo of known classes, by their names in results.json; `counts`
    are the photos of each class, by split. `confusion` counts photos by true class (row) and
    predicted class (column)."""
    from scipy.stats import binomtest  # slow to import

    predicted, size = probabilities.argmax(1), len(classes)
    right = predicted == labels
    confusion = np.bincount(labels * size + predicted, minlength=size**2).reshape(size, size)
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    per_class = [
        {
            "class": name,
            **_describe_class(confusion, place),
            **{split: of[place] for split, of in counts.items()},
        }
        for place, name in enumerate(classes)
    ]
    # Wilson's interval also holds when all or none are correct, and for few photos.
    interval = binomtest(int(right.sum()), len(labels)).proportion_ci(method="wilson")
    return {
        "test_accuracy": float(right.mean()),
        "test_accuracy_ci": [float(interval.low), float(interval.high)],
        "test_macro_f1": float(np.mean([row["f1"] for row in per_class if row["f1"] is not None])),
        "test_loss": float(-np.log(own.clip(np.finfo(np.float32).tiny)).mean()),
        "test_ece": expected_calibration_error(
            right.astype(np.int64), probabilities.max(1).clip(0, 1)
        ),
        "test_photos": len(labels),
        "classes": list(classes),
        "per_class": per_class,
        "confusion": confusion.tolist(),
    }


def count_suspects(probabilities: Float[np.ndarray, "photos classes"], labels: Labels) -> int:
    """How many of the photos have a label that looks wrong: their own class is unlikely, and
    another one as likely as the prediction of every second photo."""
    top = probabilities.max(1)
    own = probabilities[np.arange(len(labels)), labels]
    return int(((own < _UNLIKELY) & (top >= np.median(top))).sum()) if len(labels) else 0


def _describe_class(confusion: Int64[np.ndarray, "classes classes"], place: int) -> dict[str, Any]:
    """Precision, recall and F1; None without photos to compute them from."""
    right = int(confusion[place, place])
    called, photos = int(confusion[:, place].sum()), int(confusion[place].sum())
    return {
        "precision": right / called if called else None,
        "recall": right / photos if photos else None,
        "f1": 2 * right / (called + photos) if photos else None,
    }


def fit_temperature(logits: Logits, labels: Labels) -> float:
    """The temperature that calibrates the logits (Guo et al., 2017), by maximum likelihood on these
    photos.

    One misclassified photo, spread over all, is added: ten photos that are all correct do not make
    a model certain of everything.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    scores, found = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    unknown = 1 / (len(found) + 1)

    def loss(exponent: float) -> float:
        likely = (scores / math.exp(exponent)).log_softmax(dim=1)
        own = likely.gather(1, found[:, None]).mean()
        return float(-(1 - unknown) * own - unknown * likely.mean())

    # The loss has a single minimum in the temperature's logarithm.
    bounds = (math.log(_COLDEST), math.log(_HOTTEST))
    found_at = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(found_at.x)


def measure_loss(logits: Logits, labels: Labels, temperature: float) -> float:
    """The mean negative logarithm of the probability of the true class."""
    likely = (torch.from_numpy(logits).double() / temperature).log_softmax(dim=1)
    return float(-likely[torch.arange(len(labels)), torch.from_numpy(labels)].mean())


def write_results(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Write results.json; returns the results as they read back (JSON has no tuples)."""
    replace_json(folder / RESULTS, results)
    return json.loads(to_json(results))


def draw_photo_map(
    folder: Path,
    photos: TrainingPhotos,
    samples: ImageSamples,
    outputs: Mapping[str, SplitOutputs],
    device: torch.device,
) -> None:
    """Write map.csv and map.jpg; the positions are computed on `device`."""
    places = np.concatenate([one.chosen for one in outputs.values()])
    features = np.concatenate([one.features for one in outputs.values()])
    predicted = np.concatenate(
        [one.logits[np.searchsorted(one.places, one.chosen)].argmax(1) for one in outputs.values()]
    )
    is_wrong = predicted != photos.labels[places]
    shown = choose_shown(
        photos.labels[places], MOST_ON_MAP, first=np.flatnonzero(is_wrong).tolist()
    )
    # The first ones have thumbnails: the mistakes, then some of everything.
    order = np.random.default_rng(0).permutation(shown)
    order = order[np.argsort(~is_wrong[order], kind="stable")]
    mistakes = np.flatnonzero(is_wrong[order]).tolist()
    positions = lay_out(features[order], first=mistakes, device=device)
    rows = [
        MapRow(
            name=photos.cached.photos[place].name,
            label=photos.classes[photos.labels[place]],
            split=SPLITS[photos.splits[place]],
            predicted=photos.classes[label],
            x=x,
            y=y,
        )
        for place, label, (x, y) in zip(
            places[order].tolist(), predicted[order].tolist(), positions.tolist(), strict=True
        )
    ]
    shown = places[order[:MOST_THUMBNAILS]]
    images = (samples.read(np.array([place]))[0].cpu().numpy() for place in shown)
    write_map(folder, rows, draw_sheet(images, len(shown)))
