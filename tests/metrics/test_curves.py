"""Curves for reports: few points, the same picture."""

import numpy as np
import pytest
from sklearn.metrics import auc, roc_curve

from clew.base.errors import InputError
from clew.metrics.measures import area_under_risk_coverage, risk_coverage_points, roc_points
from clew.metrics.ranking import auroc
from tests.metrics.scores import draw_scores, draw_tied


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_thinned_roc_keeps_the_auroc(count: int) -> None:
    labels, scores = draw_scores(count)
    x, y = roc_points(labels, scores)
    assert len(x) <= 200
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert auc(x, y) == pytest.approx(auroc(labels, scores), abs=2e-3)


def test_thinned_roc_passes_through_points_of_the_full_curve() -> None:
    labels, scores = draw_scores(5000)
    x, y = roc_points(labels, scores)
    full = set(zip(*(values.tolist() for values in roc_curve(labels, scores)[:2]), strict=True))
    assert set(zip(x.tolist(), y.tolist(), strict=True)) <= full


@pytest.mark.parametrize("count", [1000, 20_000])
def test_thinned_risk_stays_close_everywhere(count: int) -> None:
    labels, scores = draw_scores(count, share=0.3)
    x, y = risk_coverage_points(labels, scores)
    kept = np.arange(1, count + 1)
    full = np.cumsum(labels[np.argsort(scores)]) / kept
    thinned = np.interp(kept / count, x, y)
    assert len(x) <= 200
    assert np.abs(thinned - full)[kept > 10].max() < 0.01  # the first few jump up and down
    assert y[-1] == pytest.approx(labels.mean())
    assert thinned.mean() == pytest.approx(area_under_risk_coverage(labels, scores), abs=1e-3)


def test_straight_lines_need_two_points() -> None:
    labels, _ = draw_tied(100)
    x, y = roc_points(labels, np.zeros(100))
    assert (x.tolist(), y.tolist()) == ([0, 1], [0, 1])
    coverage, risk = risk_coverage_points(np.zeros(1000), np.arange(1000.0))
    assert (coverage.tolist(), risk.tolist()) == ([0.001, 1], [0, 0])


def test_single_sample_is_a_point() -> None:
    coverage, risk = risk_coverage_points(np.array([1]), np.array([0.3]))
    assert (coverage.tolist(), risk.tolist()) == ([1], [1])


def test_number_of_points_is_respected() -> None:
    labels, scores = draw_scores(500)
    assert len(roc_points(labels, scores, most=7)[0]) == 7
    with pytest.raises(InputError, match="most is 1: a curve requires at least 2 points"):
        roc_points(labels, scores, most=1)
