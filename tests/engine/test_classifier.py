"""Losses compared with straightforward implementations."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clew.base.errors import InputError
from clew.engine import BinaryLoss, CategoricalLoss


def scored(count: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    scores = np.round(random.standard_normal(count) + labels, 1)  # with ties
    return torch.from_numpy(scores).float(), torch.from_numpy(labels).float()


def test_binary_loss_is_cross_entropy() -> None:
    scores, labels = scored(20)
    expected = F.binary_cross_entropy_with_logits(scores, labels)
    assert BinaryLoss()(scores, labels).item() == pytest.approx(expected.item())
    weight = torch.tensor(3.0)
    expected = F.binary_cross_entropy_with_logits(scores, labels, pos_weight=weight)
    assert BinaryLoss(positive_weight=3)(scores, labels).item() == pytest.approx(expected.item())
    smooth = F.binary_cross_entropy_with_logits(scores, labels * 0.9 + 0.05)
    assert BinaryLoss(label_smoothing=0.1)(scores, labels).item() == pytest.approx(smooth.item())


def test_focal_loss_matches_hand_computed_value() -> None:
    p = torch.tensor([0.9, 0.2])
    loss = BinaryLoss(focal_gamma=2)(p.logit(), torch.tensor([1.0, 0.0]))
    by_hand = (0.1**2 * -math.log(0.9) + 0.2**2 * -math.log(0.8)) / 2
    assert loss.item() == pytest.approx(by_hand, rel=1e-4)
    two = torch.stack([torch.zeros(2), p.logit()], dim=1)
    classes = CategoricalLoss(focal_gamma=2)(two, torch.tensor([1, 0]))
    assert classes.item() == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_very_confident_scores_has_finite_gradients(gamma: float) -> None:
    scores = torch.tensor([80.0, -80, 80, -80, 0], requires_grad=True)
    labels = torch.tensor([1.0, 0, 0, 1, 1])
    BinaryLoss(focal_gamma=gamma)(scores, labels).backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    logits = torch.stack([-scores.detach(), scores.detach()], dim=1).requires_grad_()
    CategoricalLoss(focal_gamma=gamma)(logits, labels).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_class_weights_average_over_samples() -> None:
    """Parts of a batch then add up to the whole, whichever classes they hold."""
    scores, labels = torch.randn(12, 3), torch.tensor([0] * 6 + [1, 2] * 3)
    loss = CategoricalLoss(class_weights=(1.0, 2.0, 5.0))
    halves = (loss(scores[:6], labels[:6]) + loss(scores[6:], labels[6:])) / 2
    assert halves.item() == pytest.approx(loss(scores, labels).item())
    with pytest.raises(InputError, match="has 3 classes: give one weight per class"):
        CategoricalLoss(class_weights=(1.0, 2.0))(scores, labels)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(InputError, match="focal_gamma is -1"):
        BinaryLoss(focal_gamma=-1)
    with pytest.raises(InputError, match="label_smoothing is 1"):
        CategoricalLoss(label_smoothing=1)
    with pytest.raises(InputError, match="positive_weight is 0"):
        BinaryLoss(positive_weight=0)


@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}])
def test_soft_labels_are_accepted(settings: dict) -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    shares = F.one_hot(labels, 4).float()
    mixed = 0.7 * shares + 0.3 * shares.roll(1, 0)
    loss = CategoricalLoss(**settings)
    assert torch.allclose(loss(logits, shares), loss(logits, labels))
    assert torch.allclose(loss(logits, labels), F.cross_entropy(logits, labels, **settings))
    assert torch.allclose(loss(logits, mixed), F.cross_entropy(logits, mixed, **settings))


def test_class_weights_apply_to_soft_labels() -> None:
    logits, labels = torch.zeros(1, 2), torch.tensor([[0.5, 0.5]])
    weighted = CategoricalLoss(class_weights=(1.0, 3.0))(logits, labels)
    assert torch.allclose(weighted, 2 * CategoricalLoss()(logits, labels))
