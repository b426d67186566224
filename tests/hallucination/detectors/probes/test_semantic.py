"""Answers with the same meaning are in one cluster, whatever their wording."""

import math

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.baselines import (
    cluster_entropy,
    cluster_samples,
    split_entropies,
)
from clew.hallucination.detectors.probes.registry import PROBES
from clew.metrics.ranking import auroc
from tests.hallucination.detectors.probes.features import MemoryFeatures, telling_states


@pytest.mark.parametrize(
    ("question", "samples", "sizes"),
    [
        (
            "What is the capital of France?",
            ["Paris", "paris.", "The capital of France is Paris.", "It's Paris!", "Lyon"],
            [1, 4],
        ),
        ("Who wrote it?", ["Jane Austen", "Austen", "Emily Brontë", "Emily Bronte"], [2, 2]),
        ("Is it a cat or a dog?", ["a cat", "It is a dog.", "A dog"], [1, 2]),
        ("How many?", ["12,500", "12500", "125"], [1, 2]),
        ("What?", ["", "", "yes"], [2, 1]),
        ("Which river?", ["Art", "Artois"], [1, 1]),
        ("What is 2?", ["It is 2.", "It is 3.", "It is 4."], [1, 1, 1]),
    ],
)
def test_answers_are_clustered_by_meaning(
    question: str, samples: list[str], sizes: list[int]
) -> None:
    assert sorted(cluster_samples(question, samples)) == sorted(sizes)
    assert sorted(cluster_samples(question, samples[::-1])) == sorted(sizes)


def test_entropy_is_computed_from_cluster_shares() -> None:
    assert cluster_entropy([10]) == 0
    assert cluster_entropy([5, 5]) == pytest.approx(math.log(2))
    assert cluster_entropy([1] * 10) == pytest.approx(math.log(10))


def test_constant_entropy_is_rejected() -> None:
    labels = np.tile([0, 1], 10)
    values = {"samples": [["Rome", "Paris"]] * 20, "question": ["Where?"] * 20}
    with pytest.raises(InputError, match="carries no information: draw more answers"):
        PROBES["semantic_entropy"].fit(MemoryFeatures(labels, values), seed=0)


def test_entropies_are_split_where_both_groups_are_tight() -> None:
    assert split_entropies(np.array([0, 0.1, 0.2, 1.5, 1.6, 2.0])) == 0.2
    assert split_entropies(np.array([0.0, 0.7])) == 0


def test_probe_learns_the_entropy_of_some_training_answers_only() -> None:
    """The labels of training answers are not used: here they are reversed. Half of the training
    answers, and all others, have no draws."""
    labels, states = telling_states(300, layers=3, dim=8)
    drawn = [["Rome", "Oslo"] if label else ["Rome", "Rome"] for label in labels]
    samples = [some if row < 180 and row % 2 else None for row, some in enumerate(drawn)]
    labels[:180] = 1 - labels[:180]
    values = {"sequence": states, "samples": samples, "question": ["Where?"] * 300}
    data = MemoryFeatures(labels, values)
    outcome = PROBES["semantic_entropy_probe"].run(data, seed=0)
    assert outcome.chosen["layer"] == 1 and outcome.chosen["entropy"] == 0
    assert auroc(data.labels["test"], outcome.test) > 0.7
    assert outcome.scorer is not None and outcome.scorer.fields == {"sequence"}


def test_probe_without_any_draws_says_what_to_do() -> None:
    labels, states = telling_states(40, layers=2, dim=4)
    values = {"sequence": states, "samples": [None] * 40, "question": ["Where?"] * 40}
    with pytest.raises(InputError, match="with `draws=10`"):
        PROBES["semantic_entropy_probe"].fit(MemoryFeatures(labels, values), seed=0)
