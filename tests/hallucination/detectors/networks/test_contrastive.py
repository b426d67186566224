"""The contrastive autoencoder: what its loss rewards."""

import math

import pytest
import torch

from clew.errors import InputError
from clew.hallucination.detectors.networks.contrastive import (
    ContrastiveAutoencoder,
    ContrastiveConfig,
    FeatureBatches,
    contrast,
)

LABELS = torch.tensor([0, 0, 1, 1])


def test_contrast_rewards_equal_labels_that_lie_together() -> None:
    together = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    apart = together[[0, 2, 1, 3]]
    assert contrast(together, LABELS, 0.1) < 0.01 < 5 < contrast(apart, LABELS, 0.1)
    # Without directions to tell them apart, each of three others is as likely.
    assert contrast(torch.ones(4, 2), LABELS, 0.1).item() == pytest.approx(math.log(3))
    assert contrast(torch.ones(1, 2), LABELS[:1], 0.1).item() == 0


def test_every_weight_is_trained_and_evaluation_compares_with_known_answers() -> None:
    torch.manual_seed(0)
    features = torch.randn(4, 6)
    network = ContrastiveAutoencoder(ContrastiveConfig(inputs=6, hidden=8), features, LABELS)
    batch = {"features": features, "label": LABELS}
    output = network.training_step(batch)
    output.loss.backward()
    assert output.scores is None and {*output.metrics} == {"contrast", "reconstruction"}
    assert all(one.grad is not None and one.grad.any() for one in network.parameters())
    scores = network.eval().training_step(batch).scores
    assert scores is not None and (scores[2:].min() > scores[:2].max()).item()


def test_batches_have_every_answer_once() -> None:
    rows = torch.arange(20)
    for shuffle in (False, True):
        torch.manual_seed(0)
        batches = FeatureBatches(rows[:, None].float(), rows, 8, shuffle=shuffle)
        found = torch.cat([batch["label"] for batch in batches])
        assert len(batches) == 3 and found.sort().values.equal(rows)
        assert found.equal(rows) != shuffle


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(InputError, match="size is 0: it must be 1 or more"):
        ContrastiveConfig(inputs=4, size=0)
