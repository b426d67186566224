"""The diagonal of LapEigvals is the spectrum, and block-wise probes equal those on all data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clew import TraceBatchLoader
from clew.base.errors import InputError
from clew.hallucination.detectors.probes import fitting
from clew.hallucination.detectors.probes.attention import AttentionScore
from clew.hallucination.detectors.probes.method import Features
from clew.hallucination.detectors.probes.registry import PROBES
from tests.hallucination.detectors.probes.features import MemoryFeatures


def eigenvalues(attention: np.ndarray) -> np.ndarray:
    """Those of D - A, largest first, for every layer and head; without assumptions about its
    structure."""
    tokens = attention.shape[-1]
    degrees = attention.sum(axis=-2) / (tokens - np.arange(tokens))
    laplacian = degrees[..., None] * np.eye(tokens) - attention
    found = np.linalg.eigvals(laplacian)
    assert np.abs(found.imag).max() == 0
    return -np.sort(-found.real, axis=-1)


def test_stored_eigenvalues_are_the_largest_of_the_maps(full_store: Path) -> None:
    for trace in TraceBatchLoader(full_store).iter_traces():
        stored = trace["laplacian_top"].astype(np.float64)
        expected = np.zeros_like(stored)
        found = eigenvalues(trace["attentions"].astype(np.float64))[..., : stored.shape[-1]]
        expected[..., : found.shape[-1]] = found
        assert np.abs(stored - expected).max() < 2e-3  # maps and eigenvalues are float16


def telling_spectra(answers: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and [answers, 3, 2, ranks], largest first; the largest twenty reveal the label."""
    random = np.random.default_rng(0)
    labels = (random.random(answers) < 0.4).astype(np.int8)
    spectra = -np.sort(-random.random((answers, 3, 2, ranks)), axis=-1)
    spectra[..., :20] += 0.02 * labels[:, None, None, None]
    return labels, spectra.astype(np.float32)


class OneEmptyAnswer:
    """Of two answers, the second has no tokens."""

    def __init__(self, kind: Callable[[np.ndarray], Any]) -> None:
        self._sums = kind(np.array([[1, 2], [np.nan, np.nan]], np.float32))

    def read(self, field: str, _split: str, **_where: int) -> Any:
        return self._sums if field == "log_diagonal_answer" else [np.ones(3), np.ones(0)]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_answer_without_tokens_gets_the_usual_attention_score(kind: Any) -> None:
    data = cast(Features, OneEmptyAnswer(kind))
    assert AttentionScore(layer=0, without=0.5).score(data, "test").tolist() == [3.0, 0.5]


@pytest.mark.slow
def test_block_wise_probe_equals_a_scikit_learn_pipeline() -> None:
    labels, values = telling_spectra(500, ranks=100)
    data = MemoryFeatures(labels, {"laplacian_top": values})
    outcome = PROBES["lapeigvals"].run(data, seed=0)
    flat = values[..., : outcome.chosen["k"]].reshape(500, -1)
    rival = make_pipeline(
        StandardScaler(),
        PCA(min(512, flat.shape[1], 299)),
        LogisticRegression(C=outcome.chosen["C"], class_weight="balanced", max_iter=2000),
    ).fit(flat[:300], labels[:300])
    expected = rival.decision_function(flat[400:])
    assert spearmanr(outcome.test, expected).statistic > 0.999
    assert np.abs(outcome.test - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lapeigvals", "linear_probe_pca"])
def test_components_of_a_subset_apply_to_all_answers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, values = telling_spectra(1500, ranks=10)
    data = MemoryFeatures(labels, {"laplacian_top": values, "sequence": values[:, :, 0]})
    whole = PROBES[name].run(data, seed=0)
    monkeypatch.setattr(fitting, "_MOST_ANSWERS", 400)
    some = PROBES[name].run(data, seed=0)
    assert spearmanr(whole.test, some.test).statistic > 0.98


def test_many_answers_are_decomposed_iteratively(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, values = telling_spectra(800, ranks=10)
    data = MemoryFeatures(labels, {"laplacian_top": values})
    exact = PROBES["lapeigvals"].run(data, seed=0)
    monkeypatch.setattr(fitting, "_EXACT", 100)
    monkeypatch.setattr(fitting, "COMPONENTS", 60)
    iterated = PROBES["lapeigvals"].run(data, seed=0)
    assert spearmanr(exact.test, iterated.test).statistic > 0.99


@pytest.mark.parametrize(("fitted_on", "scored"), [(100, 25), (25, 100)])
def test_stores_with_other_numbers_of_eigenvalues_are_scored(fitted_on: int, scored: int) -> None:
    labels, values = telling_spectra(300, ranks=100)
    first, second = (
        MemoryFeatures(labels, {"laplacian_top": values[..., :ranks]})
        for ranks in (fitted_on, scored)
    )
    fitted = PROBES["lapeigvals"].fit(first, seed=0)
    assert fitted.chosen["k"] <= 25
    for split in ("train", "test"):  # many and few answers
        np.testing.assert_array_equal(fitted.score(first, split), fitted.score(second, split))


def test_answers_with_another_number_of_layers_are_rejected() -> None:
    labels, values = telling_spectra(200, ranks=10)
    fitted = PROBES["lapeigvals"].fit(MemoryFeatures(labels, {"laplacian_top": values}), seed=0)
    other = MemoryFeatures(labels, {"laplacian_top": values[:, :2]})
    with pytest.raises(InputError, match="have 2 layers, but the method was fitted on 3"):
        fitted.score(other, "test")
