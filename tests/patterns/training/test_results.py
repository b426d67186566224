"""Metrics over photos, compared with other libraries."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score, log_loss

from clew.patterns.results_file import describe_suspects
from clew.patterns.trained.model import softmax
from clew.patterns.training.measuring import count_suspects, fit_temperature, measure


def draw(photos: int, classes: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn with the probabilities of the logits, which are then multiplied by
    `confidence`."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (photos, classes)).astype(np.float32)
    borders = softmax(logits).cumsum(1)
    labels = (borders < random.random((photos, 1))).sum(1).clip(max=classes - 1)
    return logits * np.float32(confidence), labels


def measure_plainly(found: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return measure(found, labels, [str(place) for place in range(found.shape[1])], {})


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (9, 9), (3, 40), (1999, 2062)])
def test_interval_matches_wilson_score_interval(right: int, count: int) -> None:
    """As in Wilson (1927)."""
    found = np.eye(2, dtype=np.float32)[[0] * right + [1] * (count - right)]
    low, high = measure_plainly(found, np.zeros(count, np.int64))["test_accuracy_ci"]
    share, z = right / count, 1.959963984540054
    for end in (low, high):  # where the difference is z standard errors
        assert (share - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / count, abs=1e-9)
    assert low <= share <= high


def test_metrics_match_scikit_learn() -> None:
    logits, labels = draw(200, 5, 1.0)
    found = softmax(logits)
    measures = measure_plainly(found, labels)
    predicted = found.argmax(1)
    assert measures["test_accuracy"] == (predicted == labels).mean()
    assert measures["test_macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert measures["test_loss"] == pytest.approx(log_loss(labels, found), rel=1e-4)
    assert (np.array(measures["confusion"]) == confusion_matrix(labels, predicted)).all()


@pytest.mark.parametrize("confidence", [0.4, 1.0, 3.0])
def test_temperature_corrects_over_and_underconfidence(confidence: float) -> None:
    logits, labels = draw(3000, 4, confidence)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(confidence, rel=0.1)
    assert measure_plainly(softmax(logits, temperature), labels)["test_ece"] < 0.03


def test_few_correct_photos_do_not_make_the_model_certain() -> None:
    logits, labels = np.eye(3, dtype=np.float32) * 2, np.arange(3)
    sure = softmax(logits, fit_temperature(logits, labels)).max(1)
    assert (sure < 0.9).all()


def test_confident_mistake_stays_finite() -> None:
    found = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    measures = measure_plainly(found, np.array([0, 0]))
    assert measures["test_accuracy"] == 0.5 and math.isfinite(measures["test_loss"])
    assert measures["per_class"][1] == {
        "class": "1",
        "precision": 0.0,
        "recall": None,
        "f1": None,
    }


def test_labels_that_look_wrong_are_counted_and_mentioned() -> None:
    labels = np.arange(200) % 4
    found = np.full((200, 4), 0.02)
    found[np.arange(200), labels] = 0.94
    found[:20] = np.roll(found[:20], 1, axis=1)  # another class, as confidently as the others
    found[20:40] = 0.25  # hard, but not wrong
    assert count_suspects(found, labels) == 20
    data = {"folder": "my photos", "splits": {"train": 500, "validation": 60, "test": 140}}
    text = describe_suspects({"suspect_labels": 20, "data": data})
    assert "20 of 200 validation and test photos" in text
    assert "clew patterns clean 'my photos'" in text
    assert describe_suspects({"suspect_labels": 2, "data": data}) == ""
    assert describe_suspects({"data": data}) == describe_suspects({}) == ""
