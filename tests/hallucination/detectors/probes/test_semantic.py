"""Answers with the same meaning are in one cluster, whatever their wording."""

import math

import numpy as np
import pytest

from clew.errors import InputError
from clew.hallucination.detectors.probes import PROBES
from clew.hallucination.detectors.probes.semantic import cluster_entropy, cluster_samples
from tests.hallucination.detectors.probes.features import MemoryFeatures


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
