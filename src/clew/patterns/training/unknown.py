"""Which photos are unlike every class: fitted on the features of the training photos, calibrated on
the validation photos, and measured on the test photos by holding classes out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from clew.metrics import auroc
from clew.patterns.trained.unknown import (
    Spread,
    UnknownModel,
    calibrate,
    find_spread,
    fit_space,
)
from clew.patterns.training.looking import Seen

# Of the validation photos, the share that is marked as unknown, as in `identify`.
_MARKED = 0.05
_MOST_HELD_OUT = 100
_FEWEST_CLASSES = 3  # one is held out, and the others must differ from each other

Labels = Int64[np.ndarray, " photos"]


def fit_unknown(seen: Mapping[str, Seen], labels: Labels) -> UnknownModel | None:
    """None if there are too few validation photos. `labels` are those of all photos."""
    train, held_out = seen["train"], seen["validation"]
    space = fit_space(train.features, labels[train.chosen])
    return calibrate(space, held_out.features)


def describe_unknown(
    unknown: UnknownModel | None,
    seen: Mapping[str, Seen],
    labels: Labels,
    classes: Sequence[str],
) -> dict[str, Any] | None:
    """How well it works, as in results.json; None if it does not exist."""
    if unknown is None:
        return None
    rows = hold_classes_out(seen, labels, classes)
    known = [row["auroc"] for row in rows if row["auroc"] is not None]
    return {
        "validation_photos": len(seen["validation"].features),
        "marked_share": _MARKED,
        "test_marked": _find_marked(unknown, seen["test"].features),
        "auroc": float(np.mean(known)) if known else None,
        "held_out_classes": rows,
    }


def hold_classes_out(
    seen: Mapping[str, Seen], labels: Labels, classes: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per class: how well its test photos are told from those of the others, when its
    training photos are excluded from the distances. The network was trained on all classes."""
    train = seen["train"]
    trained = np.unique(labels[train.chosen]).tolist()
    if len(trained) < _FEWEST_CLASSES:
        return []
    spread = find_spread(train.features, labels[train.chosen])
    every = -(-len(trained) // _MOST_HELD_OUT)
    return [
        {"class": classes[label], **_hold_out(seen, labels, label, spread)}
        for label in trained[::every]
    ]


def _hold_out(
    seen: Mapping[str, Seen], labels: Labels, label: int, spread: Spread
) -> dict[str, Any]:
    train, held_out, test = (seen[split] for split in ("train", "validation", "test"))
    others, kept = labels[train.chosen] != label, labels[held_out.chosen] != label
    space = fit_space(train.features[others], labels[train.chosen][others], spread)
    model = calibrate(space, held_out.features[kept])
    is_unknown = labels[test.chosen] == label
    row: dict[str, Any] = {"photos": int(is_unknown.sum()), "auroc": None, "found": None}
    if model is not None and is_unknown.any() and not is_unknown.all():
        distances = model.distances(test.features).astype(np.float64)
        row["auroc"] = float(auroc(is_unknown.astype(np.int64), distances))
        row["found"] = _find_marked(model, test.features[is_unknown])
    return row


def _find_marked(
    model: UnknownModel, features: Float32[np.ndarray, "photos features"]
) -> float | None:
    """The share of the photos that is marked as unknown."""
    return float((model.typicality(features) < _MARKED).mean()) if len(features) else None
