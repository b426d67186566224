"""Wrong labels, overlapping classes and outliers, on features whose truth is known."""

import numpy as np
import pytest

from clew.patterns.cleaning.checks import (
    find_outliers,
    find_overlaps,
    find_suspects,
    join_features,
    predict_left_out,
)
from clew.patterns.features.neighbors import find_neighbors, unit_rows

CLASSES, PER_CLASS = 4, 40


def make_features(spread: float = 0.4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    centers = random.normal(size=(CLASSES, 12))
    features = centers[labels] + spread * random.normal(size=(len(labels), 12))
    return features.astype(np.float32), labels


def swap(labels: np.ndarray, share: float) -> tuple[np.ndarray, set[int]]:
    random = np.random.default_rng(1)
    wrong = random.choice(len(labels), round(share * len(labels)), replace=False)
    swapped = labels.copy()
    swapped[wrong] = (labels[wrong] + random.integers(1, CLASSES, len(wrong))) % CLASSES
    return swapped, set(wrong.tolist())


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_swapped_labels_are_found_with_the_right_suggestion(share: float) -> None:
    features, labels = make_features()
    given, wrong = swap(labels, share)
    chances = predict_left_out(join_features(features), given, CLASSES)
    found = {*find_suspects(chances, given)}
    assert len(found & wrong) >= 0.9 * len(wrong) and len(found & wrong) >= 0.8 * len(found)
    right = [one for one in found & wrong if chances[one].argmax() == labels[one]]
    assert len(right) == len(found & wrong)


def test_a_photo_has_no_say_about_itself() -> None:
    """The closed form equals the regression without the photo."""
    features, labels = make_features(spread=1.5)
    features, labels = features[::4], labels[::4]
    chances = predict_left_out(features, labels, CLASSES)
    other = labels.copy()
    other[3] = (labels[3] + 1) % CLASSES
    changed = predict_left_out(features, other, CLASSES)
    assert np.argmax(changed[3]) == np.argmax(chances[3])
    np.testing.assert_allclose(changed[3], chances[3], atol=0.15)


def test_correct_labels_give_few_suspects() -> None:
    features, labels = make_features()
    chances = predict_left_out(join_features(features), labels, CLASSES)
    assert len(find_suspects(chances, labels)) <= 0.02 * len(labels)
    assert find_overlaps(chances, labels) == []


def test_more_features_than_photos_work_too() -> None:
    features, labels = make_features()
    wide = np.concatenate([features, np.random.default_rng(2).normal(size=(160, 400))], axis=1)
    chances = predict_left_out(join_features(features, wide.astype(np.float32)), labels, CLASSES)
    assert np.mean(chances.argmax(1) == labels) > 0.9


def test_classes_that_look_alike_overlap() -> None:
    features, labels = make_features(spread=0.3)
    features[labels == 1] = features[labels == 0] + 0.25 * np.random.default_rng(3).normal(
        size=(PER_CLASS, 12)
    ).astype(np.float32)
    chances = predict_left_out(join_features(features), labels, CLASSES)
    [overlap] = find_overlaps(chances, labels)
    assert (overlap.first, overlap.second) == (0, 1) and overlap.share > 0.2


def test_photo_unlike_all_others_is_an_outlier() -> None:
    features, _ = make_features()
    features[7] += 8
    assert [place for place, _ in find_outliers(features)] == [7]


def test_neighbors_are_the_most_similar_photos() -> None:
    features, labels = make_features(spread=0.2)
    found = find_neighbors(unit_rows(features), 5)
    assert np.mean(labels[found.places] == labels[:, None]) > 0.99
    assert not np.any(found.places == np.arange(len(labels))[:, None])
    asked = find_neighbors(unit_rows(features), 1, unit_rows(features, features.mean(0))[:3])
    assert asked.places[:, 0].tolist() == [0, 1, 2]
