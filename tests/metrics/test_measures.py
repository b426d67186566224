"""The metrics of a table row, checked against hand-computed cases and other libraries."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from clew.base.errors import InputError
from clew.metrics.calibration import PlattScale, calibration_points, expected_calibration_error
from clew.metrics.measures import (
    area_under_risk_coverage,
    best_threshold,
    measure_scores,
    risk_coverage_points,
    roc_points,
    threshold_for_rate,
)
from clew.metrics.ranking import auroc, bootstrap_auroc, compare_paired
from tests.metrics.scores import draw_scores, draw_tied


def test_calibration_error_matches_hand_computed_value() -> None:
    """Two bins. (0, 0.5]: 0.1, 0.2, 0.5 with labels 0, 1, 0: |1/3 - 0.8/3| * 3/5.
    (0.5, 1]: 0.6, 1.0 with labels 0, 1: |1/2 - 0.8| * 2/5."""
    labels, found = np.array([0, 1, 0, 0, 1]), np.array([0.1, 0.2, 0.5, 0.6, 1.0])
    expected = 3 / 5 * abs(1 / 3 - 0.8 / 3) + 2 / 5 * abs(1 / 2 - 0.8)
    width = {"bins": 2, "equal_mass": False}
    assert expected_calibration_error(labels, found, **width) == pytest.approx(expected)
    predicted, share, counts = calibration_points(labels, found, **width)
    assert predicted == pytest.approx([0.8 / 3, 0.8])
    assert share == pytest.approx([1 / 3, 1 / 2])
    assert counts.tolist() == [3, 2]


def test_calibration_error_with_bins_of_equal_width_is_the_usual_one() -> None:
    """The mean over the bins of |mean probability - share of positives|, by their samples."""
    labels, found = np.array([0, 1, 1, 0, 1]), np.array([0.05, 0.08, 0.55, 0.58, 0.95])
    ours = expected_calibration_error(labels, found, bins=10, equal_mass=False)
    assert ours == pytest.approx((2 * (0.5 - 0.065) + 2 * (0.565 - 0.5) + 1 * (1 - 0.95)) / 5)


def test_confident_and_right_is_calibrated_confident_and_wrong_is_not() -> None:
    labels = np.array([0, 1, 0, 1])
    assert expected_calibration_error(labels, labels) == 0
    assert expected_calibration_error(labels, 1 - labels) == 1


def test_risk_coverage_matches_hand_computed_values() -> None:
    """Kept one by one from the lowest score: negative, positive, negative, positive."""
    labels, scores = np.array([1, 0, 1, 0]), np.array([0.9, 0.5, 0.3, 0.1])
    coverage, risk = risk_coverage_points(labels, scores)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    expected = (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4
    assert area_under_risk_coverage(labels, scores) == pytest.approx(expected)


def test_ties_count_as_the_mean_over_their_orders() -> None:
    """0.1 is negative; then a negative and a positive at 0.2, in both orders."""
    labels, scores = np.array([0, 0, 1]), np.array([0.1, 0.2, 0.2])
    orders = [(0 + 0 + 1 / 3) / 3, (0 + 1 / 2 + 1 / 3) / 3]
    assert area_under_risk_coverage(labels, scores) == pytest.approx(np.mean(orders))


def test_ties_match_random_orders() -> None:
    labels, scores = draw_tied(40)
    random = np.random.default_rng(0)
    broken = [
        area_under_risk_coverage(labels, scores + 1e-6 * random.random(40)) for _ in range(2000)
    ]
    assert area_under_risk_coverage(labels, scores) == pytest.approx(np.mean(broken), abs=2e-3)


def test_uninformative_scores_have_the_base_rate_as_risk() -> None:
    labels = np.array([1, 0, 0, 0])
    assert area_under_risk_coverage(labels, np.ones(4)) == pytest.approx(0.25)


@pytest.mark.parametrize("draw", [draw_scores, draw_tied])
def test_threshold_maximizes_f1(draw) -> None:
    for seed in range(5):
        labels, scores = draw(60, seed=seed)
        found = PlattScale.fit(labels, scores).probabilities(scores)
        best = plain_f1(labels, found > best_threshold(labels, found))
        others = [plain_f1(labels, found > threshold) for threshold in np.linspace(-0.01, 1, 300)]
        assert best >= max(others)


@pytest.mark.parametrize(
    ("labels", "found", "expected"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.8], 0.4),
        ([0, 1], [0.5, 0.5], 0.25),
        ([1, 0], [0.2, 0.9], 0.1),  # predicting all positive is best
    ],
)
def test_threshold_lies_halfway_between_samples(labels: list, found: list, expected: float) -> None:
    assert best_threshold(np.array(labels), np.array(found)) == pytest.approx(expected)


def test_threshold_between_adjacent_floats_still_separates_them() -> None:
    for low in np.linspace(0.1, 0.9, 50):
        found = np.array([low, np.nextafter(low, 1)])
        assert (found > best_threshold(np.array([0, 1]), found)).tolist() == [False, True]
    assert best_threshold(np.array([0, 1]), np.zeros(2)) < 0


def plain_f1(labels: np.ndarray, called: np.ndarray) -> float:
    hits = np.sum(called & (labels == 1))
    return 2 * hits / (called.sum() + labels.sum())


def test_table_row_matches_hand_computed_values() -> None:
    labels, found = np.array([0, 0, 1, 1]), np.array([0.1, 0.7, 0.6, 0.9])
    row = measure_scores(labels, found, threshold=0.5)
    assert (row.auroc, row.threshold) == (0.75, 0.5)
    assert row.auprc == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert (row.accuracy, row.f1) == (0.75, pytest.approx(2 * 2 / (3 + 2)))
    assert row.auroc_ci == bootstrap_auroc(labels, found)
    assert row.ece == expected_calibration_error(labels, found)
    assert row.aurc == area_under_risk_coverage(labels, found)
    assert all(type(value) in (float, tuple) for value in dataclasses.astuple(row))


def test_measures_match_scikit_learn_also_for_tied_scores() -> None:
    random = np.random.default_rng(0)
    labels, found = random.integers(0, 2, 200), random.integers(0, 11, 200) / 10
    row = measure_scores(labels, found, threshold=0.45, resamples=2)
    assert row.auprc == pytest.approx(average_precision_score(labels, found), abs=1e-12)
    assert row.f1 == pytest.approx(f1_score(labels, found > 0.45), abs=1e-12)
    assert row.accuracy == accuracy_score(labels, found > 0.45)


def test_predicting_no_positives_gives_zero_f1() -> None:
    labels, found = np.array([0, 0, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])
    row = measure_scores(labels, found, threshold=1.0)
    assert (row.f1, row.accuracy) == (0.0, 0.75)


def test_ranks_come_from_the_scores_where_given() -> None:
    labels, scores = np.array([0, 0, 1, 1]), np.array([900.0, 901, 902, 903])
    found = torch.from_numpy(scores).sigmoid().numpy()  # all 1
    assert measure_scores(labels, found, threshold=0.5).auroc == 0.5
    row = measure_scores(labels, found, threshold=0.5, scores=scores)
    assert (row.auroc, row.auprc, row.ece) == (1.0, 1.0, 0.5)
    assert row.aurc == area_under_risk_coverage(labels, scores)


TWO_CLASSES = [
    auroc,
    bootstrap_auroc,
    best_threshold,
    roc_points,
    PlattScale.fit,
    lambda labels, scores: compare_paired(labels, scores, scores),
    lambda labels, scores: measure_scores(labels, scores, threshold=0.5),
]
ANY_CLASS = [
    area_under_risk_coverage,
    risk_coverage_points,
    expected_calibration_error,
    calibration_points,
]


@pytest.mark.parametrize("call", TWO_CLASSES)
@pytest.mark.parametrize(("label", "name"), [(0, "negative"), (1, "positive")])
def test_single_class_is_refused(call, label: int, name: str) -> None:
    with pytest.raises(
        InputError, match=f"all 3 samples are {name}: ranking metrics require both classes"
    ):
        call(np.full(3, label), np.array([0.1, 0.2, 0.3]))


@pytest.mark.parametrize("call", ANY_CLASS)
def test_risk_and_calibration_do_not_need_both_classes(call) -> None:
    call(np.ones(3), np.array([0.1, 0.2, 0.3]))


@pytest.mark.parametrize("call", TWO_CLASSES + ANY_CLASS)
@pytest.mark.parametrize(
    ("labels", "scores", "said"),
    [
        ([], [], "there are no samples"),
        ([0, 1, 1], [0.1, 0.2], "3 labels and 2 scores"),
        ([0, 1], [0.1, np.nan], "1 of 2 scores are non-finite"),
        ([0, 1], [-np.inf, 0.1], "first is -inf at index 0"),
        ([0, 2], [0.1, 0.2], "2 is not a label: give 1 for positive"),
        ([0, np.nan], [0.1, 0.2], "nan is not a label"),
        ([0, 1], [[0.1, 0.2]], "scores of shape"),
        ([[0, 1]], [0.1, 0.2], "labels of shape"),
    ],
)
def test_invalid_input_is_named(call, labels: list, scores: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call(np.array(labels), np.array(scores))


def test_only_probabilities_are_calibrated_or_thresholded() -> None:
    labels, scores = np.array([0, 1]), np.array([-1.0, 2.0])
    for call in (expected_calibration_error, best_threshold, TWO_CLASSES[-1]):
        with pytest.raises(InputError, match="from -1 to 2, outside 0 to 1: scale"):
            call(labels, scores)
    with pytest.raises(InputError, match="threshold is NaN"):
        measure_scores(labels, np.array([0.1, 0.9]), threshold=float("nan"))
    with pytest.raises(InputError, match="bins is 0"):
        expected_calibration_error(labels, np.array([0.1, 0.9]), bins=0)


def test_threshold_keeps_the_false_positive_rate_on_new_samples() -> None:
    random = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        chosen, new = random.random((2, 60))
        labels = np.array([0] * 59 + [1])
        limit = threshold_for_rate(labels, chosen, false_positive_rate=0.1)
        rates.append((new > limit).mean())
    assert 0.05 < np.mean(rates) <= 0.1


def test_threshold_flags_nothing_if_there_are_too_few_correct_samples() -> None:
    labels = np.array([0, 0, 1])
    assert threshold_for_rate(labels, np.array([0.1, 0.2, 0.9]), false_positive_rate=0.05) == 1.0
