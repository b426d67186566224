"""Heads on features: usable with a handful of photos, and chosen by leave-one-out."""

import numpy as np
import pytest

from clew.patterns.features.fitting import _class_means, _ridges, choose_head


def make_features(
    photos: int, classes: int = 3, width: int = 40, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Features around one center per class."""
    draw = np.random.default_rng(0)
    centers = 3 * np.random.default_rng(1).normal(size=(classes, width))
    labels = np.arange(photos) % classes
    return centers[labels] + noise * draw.normal(size=(photos, width)), labels


@pytest.mark.parametrize("photos", [15, 90])
def test_head_classifies_features_that_it_has_not_seen(photos: int) -> None:
    features, labels = make_features(photos + 30)
    head = choose_head(features[:photos], labels[:photos], 3)
    assert (head.logits(features[photos:]).argmax(1) == labels[photos:]).all()
    assert head.accuracy == 1


@pytest.mark.parametrize("photos", [12, 60])  # fewer photos than features, and more
def test_ridge_leaves_each_photo_out_as_if_it_was_fitted_without_it(photos: int) -> None:
    features, labels = make_features(photos, noise=6)
    features -= features.mean(0)
    strongest = next(_ridges(features, labels, 3))
    others = np.arange(photos) != 4
    own = next(_ridges(features[others] - features[others].mean(0), labels[others], 3))
    expected = (features[4] - features[others].mean(0)) @ own.weight + own.bias
    np.testing.assert_allclose(strongest.unseen[4], expected, atol=1e-3)


def test_class_mean_of_a_photo_is_that_of_the_others() -> None:
    features, labels = make_features(9)
    found = _class_means(features, labels, 3)
    others = np.arange(9) != 4
    alone = _class_means(features[others], labels[others], 3)
    expected = features[4] @ alone.weight + alone.bias
    np.testing.assert_allclose(found.unseen[4], expected)


def test_class_with_a_single_photo_is_not_an_error() -> None:
    features, labels = make_features(7)
    labels = np.where(np.arange(7) == 6, 2, labels % 2)
    head = choose_head(features, labels, 3)
    assert np.isfinite(head.weight).all() and np.isfinite(head.bias).all()
