"""The contrastive autoencoder: what its loss rewards."""

import math

import pytest
import torch

from clew.hallucination.detectors.networks.contrastive import (
    ContrastiveAutoencoder,
    FeatureBatches,
    contrast,
)

LABELS = torch.tensor([0, 0, 1, 1])


def test_contrast_gathers_correct_answers_only() -> None:
    up, right, left = torch.tensor([[0.0, 1], [1, 0], [-1, 0]])
    gathered = torch.stack([up, up, right, left])
    # Correct answers together and hallucinated ones apart, as the loss wants them.
    least = contrast(gathered.repeat(2, 1), LABELS, 0.1)
    hallucinated_together = gathered[[2, 3, 0, 1]]
    mixed = gathered[[0, 2, 1, 3]]
    assert least < 0.8 < contrast(mixed.repeat(2, 1), LABELS, 0.1)
    assert least < contrast(hallucinated_together.repeat(2, 1), LABELS, 0.1)
    # Without directions to tell them apart, each of the seven other views is as likely.
    assert contrast(torch.ones(8, 2), LABELS, 0.1).item() == pytest.approx(math.log(7))
    assert contrast(torch.ones(2, 2), LABELS[:1], 0.1).item() == 0


def test_every_weight_is_trained_and_evaluation_compares_with_known_answers() -> None:
    torch.manual_seed(0)
    features = torch.randn(4, 6)
    network = ContrastiveAutoencoder(features, LABELS, hidden=8)
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
