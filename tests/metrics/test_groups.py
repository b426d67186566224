"""Metrics of grouped samples: their values, and intervals that resample groups."""

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.metrics.measures import measure_groups
from clew.metrics.ranking import auroc


def test_values_are_those_of_the_samples() -> None:
    labels = np.array([0] * 20 + [1] * 5)
    scores = np.array([*range(20), 21, 22, 18.5, 3.5, 19])
    found = measure_groups(labels, scores, np.arange(25) // 5)
    assert found.auroc == pytest.approx(auroc(labels, scores))
    # One false positive in 20 is allowed: 19, which a positive ties with; 18.5 is found before 18.
    assert found.recall == pytest.approx(4 / 5)
    assert found.auroc_ci[0] <= found.auroc <= found.auroc_ci[1]
    assert found.recall_ci[0] <= found.recall <= found.recall_ci[1]


def test_samples_of_equal_score_are_found_together_or_not_at_all() -> None:
    labels = np.array([0] * 10 + [1] * 10)
    found = measure_groups(labels, np.zeros(20), np.arange(20))
    assert (found.auroc, found.recall) == (0.5, 0)


def test_intervals_resample_groups() -> None:
    """Ten copies of every sample in one group tell nothing new; as samples they would."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 80)
    scores = labels + random.standard_normal(80)
    alone = measure_groups(labels, scores, np.arange(80))
    many = [np.repeat(values, 10) for values in (labels, scores, np.arange(80))]
    together = measure_groups(*many)
    apart = measure_groups(*many[:2], np.arange(800))
    assert together.auroc_ci == pytest.approx(alone.auroc_ci, abs=0.01)
    assert np.diff(apart.auroc_ci) < 0.5 * np.diff(together.auroc_ci)


def test_groups_must_match_the_samples() -> None:
    with pytest.raises(InputError, match="3 groups for 2 samples"):
        measure_groups(np.array([0, 1]), np.array([0.1, 0.2]), np.zeros(3))
