"""Scores compared with straightforward implementations."""

import numpy as np
import pytest
import torch

from clew.engine.classifier import Evaluation, score_metrics


def scored(count: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    scores = np.round(random.standard_normal(count) + labels, 1)  # with ties
    return torch.from_numpy(scores).float(), torch.from_numpy(labels).float()


def best_threshold(scores: torch.Tensor, labels: torch.Tensor) -> float | None:
    found = Evaluation(samples=len(scores), means={}, scores=scores, labels=labels, names=[])
    return found.threshold()


def test_metrics_match_their_definitions() -> None:
    scores, labels = scored()
    threshold = best_threshold(scores, labels)
    found = score_metrics(scores, labels, threshold)
    called, true = scores.double().sigmoid() > threshold, labels.bool()
    above = scores[true][:, None] - scores[~true][None, :]  # of every pair
    auroc = ((above > 0).double() + 0.5 * (above == 0).double()).mean()
    hits, misses = (called & true).sum(), (called != true).sum()
    assert found["auroc"] == pytest.approx(auroc.item(), abs=1e-6)
    assert found["accuracy"] == pytest.approx(1 - misses.item() / len(labels), abs=1e-6)
    assert found["f1"] == pytest.approx((2 * hits / (2 * hits + misses)).item(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_threshold_maximizes_f1(seed: int) -> None:
    scores, labels = scored(60, seed)
    best = score_metrics(scores, labels, best_threshold(scores, labels))["f1"]
    others = [score_metrics(scores, labels, t)["f1"] for t in np.linspace(0, 1, 300).tolist()]
    assert best >= max(others) - 1e-6


def test_extreme_scores_keep_their_order() -> None:
    """As float32 probabilities they would all be 1."""
    scores, labels = torch.tensor([200.0, 201, 202, 203]), torch.tensor([0.0, 0, 1, 1])
    assert score_metrics(scores, labels)["auroc"] == 1.0


def test_scores_whose_probabilities_round_to_zero_can_be_evaluated() -> None:
    scores, labels = torch.tensor([-900.0, -800, -850]), torch.tensor([1.0, 0, 1])
    threshold = best_threshold(scores, labels)
    assert threshold == 0
    assert score_metrics(scores, labels, threshold)["f1"] == 0


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_single_class_has_no_auroc(label: float) -> None:
    scores, labels = torch.randn(10), torch.full((10,), label)
    found = score_metrics(scores, labels, best_threshold(scores, labels))
    assert found["auroc"] is None
    assert (found["f1"] is None) == (label == 0)


def test_several_classes_are_evaluated() -> None:
    scores, labels = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    assert score_metrics(scores, labels) == {"auroc": 1.0, "accuracy": 1.0, "f1": 1.0}
    assert score_metrics(scores[:2], labels[:2])["auroc"] is None
