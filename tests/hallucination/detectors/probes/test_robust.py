"""Robust: what a question is about is not mistaken for a hallucination."""

import numpy as np

from clew.hallucination.detectors.probes import PROBES
from clew.metrics import auroc
from tests.hallucination.detectors.probes.features import MemoryFeatures


def answers_about(topics: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """Dimension 0 tells the topic, dimension 1 tells hallucinated answers, less clearly."""
    random = np.random.default_rng(0)
    states = random.standard_normal((len(labels), 4, 8)).astype(np.float32)
    states[:, :, 0] += 6 * topics[:, None] - 3
    states[:, :, 1] += 2 * labels[:, None]
    tokens = [random.random(3).astype(np.float32) - 1 for _ in labels]
    return {
        "sequence": states.astype(np.float16),
        "category": [f"topic {topic}" for topic in topics],
        "token_logprobs": tokens,
        "token_entropies": tokens,
    }


def test_topics_that_are_often_hallucinated_are_not_learned() -> None:
    random = np.random.default_rng(1)
    topics = random.integers(0, 2, 500)
    labels = np.where(random.random(500) < 0.9, topics, 1 - topics)
    labels[300:] = np.where(random.random(200) < 0.9, 1 - topics[300:], topics[300:])  # reversed
    data = MemoryFeatures(labels, answers_about(topics, labels))
    robust, usual = (PROBES[name].run(data, seed=0) for name in ("robust", "linear_probe"))
    assert auroc(data.labels["test"], robust.test) > 0.8
    assert auroc(data.labels["test"], usual.test) < 0.7


def test_categories_with_a_single_class_are_not_compared() -> None:
    labels = np.arange(200) % 2
    topics = labels.copy()  # each topic has one class: all answers are one group then
    data = MemoryFeatures(labels, answers_about(topics, labels))
    assert auroc(data.labels["test"], PROBES["robust"].run(data, seed=0).test) > 0.9
