"""Fusion: signals that are only informative together are used, and missing ones are omitted."""

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fusion import read_confidence
from clew.hallucination.detectors.probes.registry import PROBES
from clew.metrics.ranking import auroc
from tests.hallucination.detectors.probes.features import MemoryFeatures


def signals_of_two_kinds(answers: int, *, dim: int = 6) -> tuple[np.ndarray, dict[str, object]]:
    """Hallucinated is where the signs of states and attention differ: neither reveals it alone."""
    random = np.random.default_rng(0)
    first, second = random.choice([-1.0, 1.0], (2, answers))
    labels = (first != second).astype(np.int8)

    def tell(side: np.ndarray) -> np.ndarray:
        noise = random.standard_normal((answers, 2, dim)) * 0.5
        return (noise + side[:, None, None]).astype(np.float16)

    tokens = [random.random(3).astype(np.float32) - 1 for _ in range(answers)]
    return labels, {
        "sequence": tell(first),
        "lookback": tell(second),
        "token_logprobs": tokens,
        "token_entropies": tokens,
    }


def test_fusion_combines_signals_that_are_useless_alone() -> None:
    labels, values = signals_of_two_kinds(500)
    data = MemoryFeatures(labels, values)
    outcome = PROBES["fusion"].run(data, seed=0)
    alone = PROBES["linear_probe"].run(data, seed=0)
    assert auroc(data.labels["test"], outcome.test) > 0.95
    assert auroc(data.labels["test"], alone.test) < 0.65
    assert outcome.chosen["signals"] == 3  # states, lookback, confidence


def test_answers_of_another_dimension_are_rejected() -> None:
    fitted = PROBES["fusion"].fit(MemoryFeatures(*signals_of_two_kinds(200)), seed=0)
    other = MemoryFeatures(*signals_of_two_kinds(200, dim=7))
    with pytest.raises(InputError, match="have 7 values of sequence, .* fitted on 6"):
        fitted.score(other, "test")


def test_number_of_tokens_is_not_a_signal() -> None:
    sure = np.full(2, -0.5, np.float32)
    values = {"token_logprobs": [sure, np.tile(sure, 5)] * 5, "token_entropies": [sure, sure] * 5}
    rows = read_confidence(MemoryFeatures(np.tile([0, 1], 5), values), "train")
    np.testing.assert_array_equal(rows[0], rows[1])


def test_answer_without_tokens_has_neutral_features() -> None:
    nothing = np.zeros(0, np.float32)
    values = {"token_logprobs": [nothing] * 10, "token_entropies": [nothing] * 10}
    assert not read_confidence(MemoryFeatures(np.tile([0, 1], 5), values), "train").any()
