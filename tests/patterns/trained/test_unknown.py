"""Photos of none of the classes: distances to the training features, calibrated on others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import StoreError
from clew.engine.model_files import read_model, write_model
from clew.metrics.ranking import auroc
from clew.patterns.trained.model import load_classifier
from clew.patterns.trained.unknown import (
    LEVELS,
    UNKNOWN_FILE,
    UnknownModel,
    calibrate,
    find_levels,
    fit_space,
    rank,
    read_unknown,
)
from tests.patterns.trained.tiny import write_classifier

_WIDTH = 12
_TENSORS = ("center", "axes", "points", "basis", "wholes", "scales", "levels")
_CENTERS = 3 * np.random.default_rng(7).normal(size=(5, _WIDTH))


def draw_features(classes: list[int], each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(classes, each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), _WIDTH))
    return _CENTERS[labels] + noise, labels


def fit(held_out: int = 50) -> UnknownModel:
    features, labels = draw_features([0, 1, 2, 3], 40, seed=0)
    model = calibrate(fit_space(features, labels), draw_features([0, 1, 2, 3], held_out, 1)[0])
    assert model is not None
    return model


def test_photos_of_another_class_are_far_and_known_ones_are_not() -> None:
    model = fit()
    known, unknown = draw_features([0, 1, 2, 3], 100, 2)[0], draw_features([4], 100, 2)[0]
    typicality = model.typicality(np.concatenate([known, unknown]))
    is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
    assert auroc(is_unknown, -typicality) > 0.95
    assert (typicality[is_unknown == 0] < 0.05).mean() <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 60, 400])
def test_at_most_the_share_asked_for_of_known_photos_is_marked(count: int) -> None:
    random, marked = np.random.default_rng(0), []
    for _ in range(100):
        levels = torch.from_numpy(find_levels(random.normal(size=count)).copy())
        found = rank(torch.from_numpy(random.normal(size=2_000)), levels, torch.from_numpy(LEVELS))
        marked.append((found < 0.05).double().mean())
    assert 0.01 < np.mean(marked) < 0.05
    # The tail is a normal one here; the share itself varies by what was held out.
    assert np.mean([share <= 0.06 for share in marked]) > 0.8


def test_very_few_held_out_photos_say_nothing() -> None:
    features, labels = draw_features([0, 1], 20, seed=0)
    assert calibrate(fit_space(features, labels), features[:9]) is None


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    model, photos = fit(), draw_features([0, 4], 5, 3)[0]
    model.write(tmp_path)
    again = read_unknown(tmp_path)
    assert again is not None
    assert np.array_equal(again.typicality(photos), model.typicality(photos))


def test_a_model_of_an_earlier_version_loads_without_it(tmp_path: Path) -> None:
    model = load_classifier(write_classifier(tmp_path), "cpu")
    assert model.unknown is None
    judged = model.judge(np.zeros((2, 16, 16, 3), np.uint8))
    assert judged.typicality is None and judged.probabilities.shape == (2, 2)


def write_changed(folder: Path, kind: str) -> None:
    fit().write(folder)
    tensors = dict(read_model(folder / UNKNOWN_FILE).read(_TENSORS))
    about: dict[str, Any] = {"kind": "distance to the training features", "neighbors": 10}
    changes: dict[str, Callable[[], Any]] = {
        "other": lambda: about.update(kind="a recipe"),
        "neighbors": lambda: about.update(neighbors="many"),
        "missing": lambda: tensors.pop("points"),
        "narrow": lambda: tensors.update(points=tensors["points"][:, 1:].contiguous()),
        "scalar": lambda: tensors.update(center=torch.tensor(1.0)),
        "scalars": lambda: tensors.update({name: torch.tensor(1.0) for name in tensors}),
        "NaN": lambda: tensors["axes"].fill_(float("nan")),
        "order": lambda: tensors.update(levels=tensors["levels"].flip(0)),
        "integers": lambda: tensors.update(center=tensors["center"].to(torch.int64)),
    }
    changes[kind]()
    write_model(folder / UNKNOWN_FILE, tensors, about)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("other", "neighbors", "missing", "narrow", "scalar", "scalars", "NaN", "order"),
        "integers",
    ],
)
def test_a_damaged_file_is_refused_with_a_way_out(tmp_path: Path, kind: str) -> None:
    write_changed(tmp_path, kind)
    with pytest.raises(StoreError, match="delete it to use the model without"):
        read_unknown(tmp_path)


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    fit().write(write_classifier(tmp_path))
    model = load_classifier(tmp_path, "cpu")
    with pytest.raises(StoreError, match="belongs to another model"):
        model.judge(np.zeros((1, 16, 16, 3), np.uint8))
