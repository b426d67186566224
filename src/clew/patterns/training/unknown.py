"""Which photos are unlike every class: fitted on the features of the training photos, calibrated on
the validation photos, and measured on the test photos by holding classes out."""

from collections.abc import Iterator, Mapping, Sequence
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
# Many classes are held out in this many groups, so that it takes seconds.
_MOST_GROUPS = 10
_FEWEST_CLASSES = 3  # one is held out, and the others must differ from each other

Labels = Int64[np.ndarray, " photos"]


def spread_of(seen: Mapping[str, Seen], labels: Labels) -> Spread:
    """How the features of the training photos spread. `labels` are those of all photos."""
    train = seen["train"]
    return find_spread(train.features, labels[train.chosen])


def fit_unknown(seen: Mapping[str, Seen], labels: Labels, spread: Spread) -> UnknownModel | None:
    """None if there are too few validation photos."""
    train, held_out = seen["train"], seen["validation"]
    space = fit_space(train.features, labels[train.chosen], spread)
    return calibrate(space, held_out.features)


def describe_unknown(
    unknown: UnknownModel | None,
    seen: Mapping[str, Seen],
    labels: Labels,
    classes: Sequence[str],
    spread: Spread,
) -> dict[str, Any] | None:
    """How well it works, as in results.json; None if it does not exist."""
    if unknown is None:
        return None
    rows = hold_classes_out(seen, labels, classes, spread)
    known = [row["auroc"] for row in rows if row["auroc"] is not None]
    return {
        "validation_photos": len(seen["validation"].features),
        "marked_share": _MARKED,
        "test_marked": _find_marked(unknown, seen["test"].features),
        "auroc": float(np.mean(known)) if known else None,
        "held_out_classes": rows,
    }


def hold_classes_out(
    seen: Mapping[str, Seen], labels: Labels, classes: Sequence[str], spread: Spread
) -> list[dict[str, Any]]:
    """One row per class: how well its test photos are told from those of the others, when its
    training photos are excluded from the distances. The network was trained on all classes."""
    trained = np.unique(labels[seen["train"].chosen])
    if len(trained) < _FEWEST_CLASSES:
        return []
    groups = [trained[first::_MOST_GROUPS] for first in range(min(_MOST_GROUPS, len(trained)))]
    rows = {label: row for group in groups for label, row in _hold_out(seen, labels, group, spread)}
    return [{"class": classes[label], **rows[label]} for label in sorted(rows)]


def _hold_out(
    seen: Mapping[str, Seen], labels: Labels, group: Int64[np.ndarray, " classes"], spread: Spread
) -> Iterator[tuple[int, dict[str, Any]]]:
    train, held_out, test = (seen[split] for split in ("train", "validation", "test"))
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


def _find_marked(
    model: UnknownModel, features: Float32[np.ndarray, "photos features"]
) -> float | None:
    """The share of the photos that is marked as unknown."""
    return float((model.typicality(features) < _MARKED).mean()) if len(features) else None
