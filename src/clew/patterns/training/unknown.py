"""Which photos are unlike every class: fitted on the features of the training photos, calibrated on
the validation photos, and measured on the test photos by holding classes out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from clew.metrics import auroc
from clew.patterns.trained.unknown import FeatureSpace, UnknownModel, calibrate, fit_space
from clew.patterns.training.looking import Seen

# Of the validation photos, the share that is marked as unknown, as in `identify`.
_MARKED = 0.05
_MOST_LEFT_OUT = 100
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
    test, held_out = seen["test"], seen["validation"]
    rows = hold_classes_out(unknown.space, seen, labels, classes)
    known = [row["auroc"] for row in rows if row["auroc"] is not None]
    return {
        "validation_photos": len(held_out.features),
        "marked_share": _MARKED,
        "test_marked": float((unknown.typicality(test.features) < _MARKED).mean()),
        "auroc": float(np.mean(known)) if known else None,
        "held_out_classes": rows,
    }


def hold_classes_out(
    space: FeatureSpace, seen: Mapping[str, Seen], labels: Labels, classes: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per class: how well its test photos are told from those of the others, when its
    training photos are excluded from the distances. The network was trained on all classes."""
    if len(classes) < _FEWEST_CLASSES:
        return []
    trained = np.unique(labels[seen["train"].chosen]).tolist()
    every = -(-len(trained) // _MOST_LEFT_OUT)
    return [
        {"class": classes[label], **_hold_out(space.without(place), seen, labels, label)}
        for place, label in list(enumerate(trained))[::every]
    ]


def _hold_out(
    space: FeatureSpace, seen: Mapping[str, Seen], labels: Labels, label: int
) -> dict[str, Any]:
    test, held_out = seen["test"], seen["validation"]
    is_unknown = labels[test.chosen] == label
    distances = space.distances(test.features)
    kept = held_out.features[labels[held_out.chosen] != label]
    model = calibrate(space, kept)
    both = is_unknown.any() and not is_unknown.all()
    return {
        "photos": int(is_unknown.sum()),
        "auroc": float(auroc(is_unknown.astype(np.int64), distances)) if both else None,
        "found": _found(model, test.features[is_unknown]),
    }


def _found(model: UnknownModel | None, features: Float32[np.ndarray, "photos features"]) -> Any:
    """The share of photos that is marked as unknown."""
    if model is None or not len(features):
        return None
    return float((model.typicality(features) < _MARKED).mean())
