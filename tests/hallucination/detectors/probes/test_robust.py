"""Robust: what a question is about is not mistaken for a hallucination. Gated: what is known about
the questions that were seen counts for those, and for no others."""

import numpy as np

from clew.hallucination.detectors.probes.registry import PROBES
from clew.metrics.ranking import auroc
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
    assert auroc(data.labels["test"], robust.test) > 0.75
    assert auroc(data.labels["test"], usual.test) < 0.7


def test_categories_with_a_single_class_are_not_compared() -> None:
    labels = np.arange(200) % 2
    topics = labels.copy()  # each topic has one class: all answers are one group then
    data = MemoryFeatures(labels, answers_about(topics, labels))
    assert auroc(data.labels["test"], PROBES["robust"].run(data, seed=0).test) > 0.9


def test_gated_uses_what_is_known_only_for_questions_like_those_seen() -> None:
    random = np.random.default_rng(2)
    topics, labels = random.integers(0, 2, 900), random.integers(0, 2, 900)
    labels[:600] = np.where(random.random(600) < 0.9, topics[:600], 1 - topics[:600])
    columns = answers_about(topics, labels)
    seen = MemoryFeatures(labels[:600], {name: some[:600] for name, some in columns.items()})
    fitted = {name: PROBES[name].fit(seen, seed=0) for name in ("fusion", "robust", "gated")}
    scores = {name: one.score(seen, "test") for name, one in fitted.items()}
    quality = {name: auroc(seen.labels["test"], some) for name, some in scores.items()}
    assert quality["gated"] > quality["robust"] + 0.02
    assert quality["gated"] > quality["fusion"] - 0.02

    states = columns["sequence"][600:].astype(np.float32)
    states[:, :, 2:] += 8  # nothing like it was seen
    other = {name: some[600:] for name, some in columns.items()} | {
        "sequence": states.astype(np.float16)
    }
    unseen = MemoryFeatures(labels[600:], other)
    assert np.corrcoef(*(fitted[n].score(unseen, "test") for n in ("gated", "robust")))[0, 1] > 0.98


def test_an_unseen_category_between_seen_ones_is_left_to_robust() -> None:
    random = np.random.default_rng(3)
    topics, labels = random.integers(0, 3, 900), random.integers(0, 2, 900)
    places = np.array([[3, 0], [0, 3], [-3, -3], [0, 0]])  # the last is not trained on
    topics[600:] = 3
    columns = answers_about(topics, labels)
    columns["sequence"][:, :, 0] = random.standard_normal((900, 4))
    columns["sequence"][:, :, 2:4] += places[topics][:, None].astype(np.float16)
    seen = MemoryFeatures(labels[:600], {name: some[:600] for name, some in columns.items()})
    unseen = MemoryFeatures(labels[600:], {name: some[600:] for name, some in columns.items()})
    gate = PROBES["gated"].fit(seen, seed=0).scorer.familiarity
    assert gate.share(seen, "test").mean() > 0.8
    assert gate.share(unseen, "test").mean() < 0.4
