"""AUROC with intervals and differences: verified by other means, with correct coverage."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from clew.base.errors import InputError
from clew.metrics.ranking import (
    auroc,
    bootstrap_auroc,
    bootstrap_aurocs,
    compare_paired,
    compare_seeds,
    draw_resamples,
)
from tests.metrics.scores import draw_scores, draw_tied


@pytest.mark.parametrize("draw", [draw_scores, draw_tied])
def test_auroc_matches_scikit_learn(draw) -> None:
    for seed in range(5):
        labels, scores = draw(seed=seed)
        assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 1], [1, 2], 1.0),
        ([0, 1], [2, 1], 0.0),
        ([0, 1, 0, 1], [5, 5, 5, 5], 0.5),
        ([0, 0, 1, 1], [1, 2, 2, 3], 3.5 / 4),  # one of four pairs is tied
        ([0, 0, 1, 1], [-1e300, 1e-300, 2e-300, 1e300], 1.0),
    ],
)
def test_auroc_matches_hand_computed_value(
    labels: list[int], scores: list[float], expected: float
) -> None:
    assert auroc(np.array(labels), np.array(scores)) == expected


@pytest.mark.slow
def test_auroc_of_resample_equals_auroc_of_drawn_samples() -> None:
    labels, scores = draw_tied(60)
    counts = draw_resamples(labels, resamples=50, seed=3)
    found = bootstrap_aurocs(labels, scores, counts)
    for row, value in zip(counts, found, strict=True):
        drawn = np.repeat(np.arange(len(labels)), row)
        assert value == pytest.approx(roc_auc_score(labels[drawn], scores[drawn]), abs=1e-12)


def test_every_resample_keeps_the_class_counts() -> None:
    labels = np.array([1] + 40 * [0])
    counts = draw_resamples(labels, resamples=200)
    assert (counts[:, labels == 1].sum(axis=1) == 1).all()
    assert (counts[:, labels == 0].sum(axis=1) == 40).all()
    assert np.array_equal(counts, draw_resamples(labels, resamples=200))
    assert not np.array_equal(counts, draw_resamples(labels, resamples=200, seed=1))


@pytest.mark.slow
def test_large_inputs_are_resampled_in_blocks() -> None:
    labels, scores = draw_scores(5000)
    counts = draw_resamples(labels, resamples=1000)
    found = bootstrap_aurocs(labels, scores, counts)
    assert found[-1] == bootstrap_aurocs(labels, scores, counts[-1:])[0]
    assert found.mean() == pytest.approx(auroc(labels, scores), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_interval_covers_the_true_auroc(share: float) -> None:
    covered = 0
    for seed in range(300):
        labels, scores = draw_scores(200, auroc=0.8, share=share, seed=seed)
        low, high = bootstrap_auroc(labels, scores, seed=seed)
        covered += low <= 0.8 <= high
    assert 0.92 <= covered / 300 <= 0.98


def test_lower_level_gives_a_narrower_interval() -> None:
    labels, scores = draw_scores()
    low, high = bootstrap_auroc(labels, scores, level=0.95)
    inner = bootstrap_auroc(labels, scores, level=0.5)
    assert low < inner[0] < auroc(labels, scores) < inner[1] < high


def test_identical_methods_do_not_differ() -> None:
    labels, scores = draw_tied()
    found = compare_paired(labels, scores, 3 * scores + 7)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_real_difference_is_found_with_its_sign() -> None:
    labels, scores = draw_scores(600, auroc=0.9)
    noisy = scores + 2 * np.random.default_rng(1).standard_normal(600)
    better, worse = compare_paired(labels, scores, noisy), compare_paired(labels, noisy, scores)
    assert 0 < better.low < better.difference < better.high
    assert better.p_value == worse.p_value == pytest.approx(2 / 1001)  # never 0
    assert worse.difference == -better.difference
    assert better.difference == auroc(labels, scores) - auroc(labels, noisy)


def test_paired_test_distinguishes_methods_with_overlapping_intervals() -> None:
    """Samples that are hard for both methods move both: that is why the resamples are shared."""
    labels, scores = draw_scores(300, auroc=0.8)
    nearly = scores + 0.5 * np.random.default_rng(0).standard_normal(300)
    assert bootstrap_auroc(labels, nearly)[1] > bootstrap_auroc(labels, scores)[0]
    assert compare_paired(labels, scores, nearly).p_value < 0.05


@pytest.mark.slow
def test_equally_good_methods_rarely_seem_to_differ() -> None:
    random, seeming = np.random.default_rng(2), 0
    for seed in range(200):
        labels, shared = draw_scores(150, seed=seed)
        first, second = shared + random.standard_normal((2, 150))
        seeming += compare_paired(labels, first, second, resamples=400, seed=seed).p_value < 0.05
    assert 0.01 <= seeming / 200 <= 0.09


def test_invalid_settings_are_named() -> None:
    labels, scores = draw_scores(20)
    with pytest.raises(InputError, match="resamples is 0: give at least 1"):
        draw_resamples(labels, resamples=0)
    with pytest.raises(InputError, match="level is 95: give a fraction between 0 and 1"):
        bootstrap_auroc(labels, scores, level=95)
    with pytest.raises(InputError, match="draw them with draw_resamples from the same labels"):
        bootstrap_aurocs(labels, scores, draw_resamples(labels)[:, :10])


def test_groups_count_the_same_whatever_their_size() -> None:
    parts = [
        draw_scores(count, auroc=reached, seed=count) for count, reached in ((60, 0.9), (600, 0.6))
    ]
    labels, scores = (np.concatenate(one) for one in zip(*parts, strict=True))
    groups = np.repeat(["small", "large"], [60, 600])
    mean = np.mean([auroc(*part) for part in parts])
    assert auroc(labels, scores, groups=groups) == pytest.approx(mean)
    low, high = bootstrap_auroc(labels, scores, groups=groups)
    assert low < mean < high and high - low < 0.15
    shifted = np.where(groups == "small", scores + 100, scores)  # groups are never mixed
    assert auroc(labels, shifted, groups=groups) == pytest.approx(mean)
    found = compare_paired(labels, scores, shifted, groups=groups)
    assert found.difference == pytest.approx(0) and found.p_value == 1


def test_difference_over_seeds_is_wider_than_that_of_one_seed() -> None:
    labels, _ = draw_scores(300)
    random = np.random.default_rng(0)
    ours, others = (
        [shift * labels + random.standard_normal(300) for shift in shifts]
        for shifts in ((2.0, 1.0, 0.5), (1.0, 1.0, 1.0))
    )
    over = compare_seeds(labels, ours, others)
    one = compare_paired(labels, ours[0], others[0])
    assert one.p_value < 0.05 <= over.p_value
    assert over.high - over.low > one.high - one.low


def test_answers_of_one_cluster_count_as_one_when_they_repeat_each_other() -> None:
    labels, scores = draw_scores(100, auroc=0.8, share=0.5, seed=0)
    clusters = np.repeat(np.arange(100), 4)
    repeated = np.repeat(labels, 4), np.repeat(scores, 4)
    alone, wide = bootstrap_auroc(labels, scores), bootstrap_auroc(*repeated, clusters=clusters)
    np.testing.assert_allclose(wide, alone, atol=0.02)
    low, high = bootstrap_auroc(*repeated)
    assert high - low < 0.6 * (wide[1] - wide[0])
    shuffled = np.random.default_rng(0).permutation(repeated[1])
    found = compare_paired(*repeated, shuffled, clusters=clusters)
    assert found.low > 0


def test_every_resample_of_clusters_has_both_classes() -> None:
    labels = np.array([1, 1, 0, 0])
    counts = draw_resamples(labels, clusters=np.array([0, 0, 1, 1]), resamples=50)
    assert (counts[:, :2].any(1) & counts[:, 2:].any(1)).all()
    assert (counts[:, 0] == counts[:, 1]).all()
