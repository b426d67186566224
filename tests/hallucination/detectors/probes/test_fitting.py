"""The fits equal those of scikit-learn at every regularization strength."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from clew.hallucination.detectors.probes.fitting import (
    Linear,
    choose_strength,
    fit_path,
    standardize,
)
from clew.metrics.ranking import auroc


@pytest.fixture
def sample() -> tuple[np.ndarray, np.ndarray]:
    """Features of very different scales, few of which reveal the label; one is constant."""
    random = np.random.default_rng(0)
    labels = (random.random(400) < 0.3).astype(np.int8)
    matrix = random.standard_normal((400, 60)) @ random.standard_normal((60, 60))
    matrix[:, :4] += 3 * labels[:, None]
    matrix[:, 10] = 7
    return (matrix * np.logspace(-2, 3, 60) + 5).astype(np.float32), labels


@pytest.mark.parametrize("balanced", [False, True])
def test_every_strength_equals_scikit_learn(
    sample: tuple[np.ndarray, np.ndarray], balanced: bool
) -> None:
    matrix, labels = sample
    scale = standardize(matrix[:300], "it")
    held = scale.apply(matrix[300:].copy())
    for strength, linear in fit_path(matrix[:300], labels[:300], balanced=balanced):
        rival = LogisticRegression(
            C=strength, class_weight="balanced" if balanced else None, tol=1e-8, max_iter=5000
        ).fit(matrix[:300].astype(np.float64), labels[:300])
        expected = rival.decision_function(held)
        found = linear.score(held)
        assert abs(auroc(labels[300:], found) - auroc(labels[300:], expected)) < 0.001
        assert spearmanr(found, expected).statistic > 0.999


def test_constant_feature_has_no_effect(
    sample: tuple[np.ndarray, np.ndarray],
) -> None:
    matrix, _ = sample
    scale = standardize(matrix, "it")
    assert scale.spread[10] == 1
    assert not matrix[:, 10].any()
    np.testing.assert_allclose(matrix.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.delete(matrix, 10, 1).std(0), 1, rtol=1e-3)


def test_fit_on_scaled_features_scores_unscaled_ones(
    sample: tuple[np.ndarray, np.ndarray],
) -> None:
    matrix, labels = sample
    plain = matrix.copy()
    scale = standardize(matrix, "it")
    _, linear = next(fit_path(matrix, labels))
    expected = linear.score(matrix)
    np.testing.assert_allclose(scale.undo(linear).score(plain), expected, atol=1e-4)


def test_path_ends_when_the_auroc_falls() -> None:
    labels = np.tile([0, 1], 50)
    tries = []

    def path():  # type: ignore[no-untyped-def]
        for strength, noise in ((0.1, 2), (1, 0), (10, 50), (100, 50)):
            tries.append(strength)
            yield strength, Linear(weights=np.array([1, noise], np.float32), bias=0.0)

    random = np.random.default_rng(0)
    matrix = np.stack([labels, random.standard_normal(100)], axis=1).astype(np.float32)
    choice = choose_strength(path(), matrix, labels)
    assert (choice.strength, choice.auroc) == (1, 1)
    assert tries == [0.1, 1, 10]
