"""How well photos of no class are recognized, measured by holding classes out."""

import numpy as np
import pytest

from clew.patterns.trained.unknown import find_spread
from clew.patterns.training.measuring import SplitOutputs, hold_classes_out

_EACH = {"train": 20, "validation": 10, "test": 5}


def draw_splits(classes: int) -> tuple[dict[str, SplitOutputs], np.ndarray]:
    random, seen, labels = np.random.default_rng(0), {}, []
    centers = 3 * random.normal(size=(classes, 64))
    for split, each in _EACH.items():
        found = np.repeat(np.arange(classes), each)
        places = np.arange(len(found)) + sum(map(len, labels))
        features = (centers[found] + random.normal(size=(len(found), 64))).astype(np.float32)
        logits = np.zeros((len(found), classes), np.float32)
        seen[split] = SplitOutputs(places=places, logits=logits, chosen=places, features=features)
        labels.append(found)
    return seen, np.concatenate(labels)


@pytest.mark.parametrize("count", [3, 10, 23])
def test_every_class_is_held_out_once(count: int) -> None:
    seen, labels = draw_splits(count)
    classes = [f"class {number}" for number in range(count)]
    rows = hold_classes_out(
        seen, labels, classes, find_spread(seen["train"].features, labels[seen["train"].chosen])
    )
    assert [row["class"] for row in rows] == classes
    assert {row["photos"] for row in rows} == {_EACH["test"]}
    assert np.mean([row["auroc"] for row in rows]) > 0.9


def test_two_classes_are_too_few_to_hold_one_out() -> None:
    seen, labels = draw_splits(2)
    assert (
        hold_classes_out(
            seen,
            labels,
            ["a", "b"],
            find_spread(seen["train"].features, labels[seen["train"].chosen]),
        )
        == []
    )
