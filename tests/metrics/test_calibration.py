"""Probabilities from scores of any scale: order-preserving, calibrated, never inverted."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from clew.base.errors import InputError
from clew.metrics.calibration import PlattScale, calibration_points, expected_calibration_error
from clew.metrics.ranking import auroc
from tests.metrics.scores import draw_scores


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1.0, 1e6, 1e300])
def test_scale_of_the_scores_does_not_matter(scale: float) -> None:
    labels, scores = draw_scores(500)
    plain = PlattScale.fit(labels, scores).probabilities(scores)
    scaled = PlattScale.fit(labels, scale * scores).probabilities(scale * scores)
    assert np.allclose(scaled, plain, atol=1e-6)


def test_calibrated_scores_stay_unchanged() -> None:
    random = np.random.default_rng(0)
    logits = 2 * random.standard_normal(20_000)
    labels = random.random(20_000) < expit(logits)
    found = PlattScale.fit(labels, logits).probabilities(logits)
    assert np.abs(found - expit(logits)).max() < 0.02
    assert expected_calibration_error(labels, found) < 0.01


def test_platt_equals_logistic_regression_where_that_is_defined() -> None:
    labels, scores = draw_scores(5000)
    model = LogisticRegression(C=1e6).fit(scores[:, None], labels)
    found = PlattScale.fit(labels, scores).probabilities(scores)
    assert np.allclose(found, model.predict_proba(scores[:, None])[:, 1], atol=2e-3)


def test_order_is_kept_on_unseen_samples() -> None:
    labels, scores = draw_scores(400)
    scale = PlattScale.fit(labels[:200], scores[:200])
    test = scale.probabilities(scores[200:])
    assert auroc(labels[200:], test) == auroc(labels[200:], scores[200:])


def test_sign_is_never_fitted() -> None:
    labels, scores = draw_scores(300, auroc=0.9)
    found = PlattScale.fit(labels, -scores).probabilities(-scores)
    assert auroc(labels, found) == auroc(labels, -scores) < 0.2
    assert np.ptp(found) < 0.01
    assert found.mean() == pytest.approx(labels.mean(), abs=0.01)


def test_constant_scores_give_the_base_rate() -> None:
    labels = np.array([1, 1, 1, 0] * 25)
    scale = PlattScale.fit(labels, np.full(100, 7.0))
    assert np.allclose(scale.probabilities(np.array([7.0, 7.0])), 0.75, atol=0.02)
    assert np.isfinite(scale.probabilities(np.array([-1e300, 1e300]))).all()


def test_separable_scores_give_confident_but_finite_probabilities() -> None:
    labels, scores = np.repeat([0, 1], 50), np.arange(100.0)
    scale = PlattScale.fit(labels, scores)
    found = scale.probabilities(scores)
    assert np.isfinite([scale.slope, scale.intercept]).all()
    assert found[49] < 0.5 < found[50]
    assert found[0] < 0.03
    assert found[-1] > 0.97


@pytest.mark.parametrize("far", [1e3, 1e6, 1e12])
def test_one_outlier_does_not_flatten_the_others(far: float) -> None:
    labels, scores = draw_scores(500, auroc=0.9)
    expected = PlattScale.fit(labels, scores).probabilities(scores)
    wrong = np.flatnonzero(labels == 0)[0]  # a negative with an enormous score
    moved = np.where(np.arange(500) == wrong, far, scores)
    found = PlattScale.fit(labels, moved).probabilities(moved)
    assert np.abs(np.delete(found - expected, wrong)).max() < 0.2
    assert auroc(labels, found) == auroc(labels, moved)


def test_mostly_equal_scores_are_fitted() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    found = PlattScale.fit(labels, labels * 3.0).probabilities(labels * 3.0)
    assert found[0] < 0.05
    assert found[-1] > 0.8


def test_scores_that_cannot_be_fitted_are_refused() -> None:
    with pytest.raises(InputError, match="all 3 samples are negative"):
        PlattScale.fit(np.zeros(3), np.arange(3))
    with pytest.raises(InputError, match="first is nan at index 1"):
        PlattScale.fit(np.array([0, 1]), np.array([0, np.nan]))
    scale = PlattScale.fit(np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(InputError, match="first is inf at index 0"):
        scale.probabilities(np.array([np.inf]))


def test_bins_of_equal_mass_have_as_many_samples() -> None:
    probabilities = np.random.default_rng(0).random(1000) ** 4
    labels = (np.arange(1000) % 3 == 0).astype(int)
    _, _, counts = calibration_points(labels, probabilities)
    assert counts.tolist() == [100] * 10


def test_equal_probabilities_share_a_bin_of_equal_mass() -> None:
    labels = np.array([0, 1] * 50)
    predicted, share, counts = calibration_points(labels, np.full(100, 0.5))
    assert (predicted, share, counts) == ([0.5], [0.5], [100])


def test_scale_refitted_to_another_base_rate_is_calibrated_again() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(4000) < 0.5).astype(int)
    scores = random.standard_normal(4000) + 2 * labels
    scale = PlattScale.fit(labels, scores)
    rarer = (labels == 0) | (random.random(4000) < 0.1)
    before = scale.probabilities(scores[rarer])
    again = scale.refit(labels[rarer], before)
    after = again.probabilities(scores[rarer])
    assert (np.argsort(after) == np.argsort(before)).all()
    assert expected_calibration_error(labels[rarer], before) > 0.05
    assert expected_calibration_error(labels[rarer], after) < 0.02
