"""Methods on what the model says about its own answers."""

import numpy as np
import pytest

from clew.hallucination.detectors.probes.evaluation import cluster_by_entailment
from clew.hallucination.detectors.probes.registry import PROBES
from clew.metrics.ranking import auroc
from tests.hallucination.detectors.probes.features import MemoryFeatures


def contrast(answers: int, dim: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Labels, and states after both replies. Only in layer 1 they depend on whether the answer is
    true; what the question is about is the same in both and much larger."""
    random = np.random.default_rng(0)
    labels = (random.random(answers) < 0.5).astype(np.int8)
    topic = 3 * random.standard_normal((answers, 2, dim))
    true, false = topic + 5, topic - 5  # which reply it is must not matter
    true[:, 1, 0] += np.where(labels, -2, 2)
    false[:, 1, 0] += np.where(labels, 2, -2)
    true[:, 1, 0] -= topic[:, 1, 0]
    false[:, 1, 0] -= topic[:, 1, 0]
    return labels, {"contrast_true": true, "contrast_false": false}


@pytest.mark.parametrize("name", ["ccs", "contrast_probe"])
def test_the_direction_of_truth_is_found(name: str) -> None:
    data = MemoryFeatures(*contrast(300, 12))
    outcome = PROBES[name].run(data, seed=0)
    assert outcome.chosen["layer"] == 1
    assert auroc(data.labels["test"], outcome.test) > 0.9


def test_ccs_reads_no_training_labels() -> None:
    labels, values = contrast(200, 6)
    one = PROBES["ccs"].run(MemoryFeatures(labels, values), seed=0)
    swapped = labels.copy()
    swapped[:60] = 1 - swapped[:60]
    other = PROBES["ccs"].run(MemoryFeatures(swapped, values), seed=0)
    assert np.array_equal(one.test, other.test)


def test_p_true_averages_the_log_odds_of_the_phrasings() -> None:
    labels = np.tile([0, 1], 20)
    values = np.tile([[0.9, 0.5], [0.1, 0.5]], (20, 1))
    outcome = PROBES["p_true"].run(MemoryFeatures(labels, {"p_true": values}), seed=0)
    assert outcome.test[:2] == pytest.approx([-np.log(9) / 2, np.log(9) / 2], abs=1e-5)
    extreme = MemoryFeatures(labels, {"p_true": np.round(values)})
    assert np.isfinite(PROBES["p_true"].run(extreme, seed=0).test).all()


@pytest.mark.parametrize(
    ("entails", "threshold", "sizes"),
    [
        ([[1, 0.9, 0.1], [0.8, 1, 0.9], [0.2, 0.9, 1]], 0.5, [2, 1]),
        ([[1, 0.9, 0.1], [0.2, 1, 0.9], [0.2, 0.9, 1]], 0.5, [1, 2]),  # only one direction
        ([[1, 0.9, 0.9], [0.9, 1, 0.9], [0.9, 0.9, 1]], 0.95, [1, 1, 1]),
        ([[1, 1], [1, 1]], 0.999, [2]),
    ],
)
def test_answers_that_entail_each_other_share_a_cluster(
    entails: list[list[float]], threshold: float, sizes: list[int]
) -> None:
    assert cluster_by_entailment(np.array(entails, np.float32), threshold) == sizes


def test_the_threshold_of_entailment_is_chosen_on_validation() -> None:
    """A model that always says yes, a little less surely where answers differ."""
    labels = np.tile([0, 1], 30)
    same, other = np.ones((3, 3)), np.where(np.eye(3) > 0, 1, 0.8)
    values = np.stack([other if label else np.maximum(0.95, same - 0.02) for label in labels])
    outcome = PROBES["entailment_entropy"].run(
        MemoryFeatures(labels, {"entailment": values}), seed=0
    )
    assert auroc(labels[:12], outcome.test) == 1
