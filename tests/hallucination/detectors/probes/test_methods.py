"""Every method on a real folder of answers: its results, and what it never reads."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.errors import InputError, StoreError
from clew.hallucination.detectors.probes.method import METHODS
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.samples.answers import AnswerFeatures
from clew.metrics.ranking import auroc
from tests.hallucination.detectors.probes.features import MemoryFeatures, telling_states
from tests.hallucination.detectors.training.making import write_learnable

# In `write_samples`, a signal makes these larger for hallucinated answers.
TELLING = (
    "perplexity",
    "min_probability",
    "mean_entropy",
    "attention_score",
    "linear_probe",
    "linear_probe_middle",
    "linear_probe_pca",
    "saplma",
    "lapeigvals",
    "attn_logdet",
    "lookback",
    "token_probe",
    "fusion",
    "robust",
    "gated",
    "p_true",
    "ccs",
    "contrast_probe",
    "contrastive",
)
# The samples have no contexts.
SOURCELESS = [name for name in PROBES if name != "source_words"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable(tmp_path_factory.mktemp("probes") / "pre", answers=True, signal=1.5)


@pytest.fixture(scope="module")
def data(folder: Path) -> AnswerFeatures:
    return AnswerFeatures(folder)


def test_every_method_has_its_place_in_the_table() -> None:
    assert METHODS.keys() == PROBES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCELESS)
def test_every_answer_is_scored(data: AnswerFeatures, name: str) -> None:
    outcome = PROBES[name].run(data, seed=0)
    for split, scores in (("validation", outcome.validation), ("test", outcome.test)):
        assert scores.shape == data.labels[split].shape
        assert np.isfinite(scores).all()
    assert outcome.train_seconds > 0
    assert outcome.ms_per_answer > 0
    if name in TELLING:
        assert auroc(data.labels["test"], outcome.test) > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCELESS)
def test_labels_of_the_test_split_do_not_change_the_scores(
    data: AnswerFeatures, folder: Path, name: str
) -> None:
    before = PROBES[name].run(data, seed=0)
    other = AnswerFeatures(folder)
    other.labels["test"] = 1 - other.labels["test"]
    after = PROBES[name].run(other, seed=0)
    assert after.chosen == before.chosen
    np.testing.assert_array_equal(after.test, before.test)
    np.testing.assert_array_equal(after.validation, before.validation)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCELESS)
def test_fitted_method_scores_another_store(
    data: AnswerFeatures, tmp_path: Path, name: str
) -> None:
    fitted = PROBES[name].fit(data, seed=0)
    pre = write_learnable(tmp_path / "pre", answers=True, shards=1, rows=40)
    other = AnswerFeatures(pre)
    assert fitted.score(other, "test").shape == other.labels["test"].shape


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_probe", "linear_probe_pca", "saplma", "lookback"])
def test_store_of_another_model_is_rejected(
    data: AnswerFeatures, tmp_path: Path, name: str
) -> None:
    fitted = PROBES[name].fit(data, seed=0)
    pre = write_learnable(
        tmp_path / "pre", answers=True, graphs=False, rows=10, dim=6, layers=4, attention_heads=3
    )
    with pytest.raises(InputError, match="use answers of the same model"):
        fitted.score(AnswerFeatures(pre), "test")


def test_best_layer_is_chosen_and_all_layers_can_be_plotted() -> None:
    labels, states = telling_states(300, layers=4, dim=8)
    outcome = PROBES["linear_probe"].run(MemoryFeatures(labels, {"sequence": states}), seed=0)
    assert outcome.chosen["layer"] == 1
    assert outcome.by_layer is not None
    assert {split: len(found) for split, found in outcome.by_layer.items()} == {
        "validation": 4,
        "test": 4,
    }
    assert outcome.parameters == 8 + 1


@pytest.mark.slow
def test_only_seeded_methods_depend_on_the_seed(data: AnswerFeatures) -> None:
    for name in ("saplma", "lapeigvals"):
        first, again, other = (PROBES[name].run(data, seed=seed).test for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert PROBES[name].is_seeded == (not np.array_equal(first, other))


def test_training_time_includes_shared_work(folder: Path) -> None:
    data = AnswerFeatures(folder)
    alone = PROBES["linear_probe"].fit(data, seed=0)
    shared = PROBES["saplma"].fit(data, seed=0)
    assert alone.shared_seconds == 0
    assert shared.shared_seconds > 0


def test_answers_without_tokens_get_the_median_of_training() -> None:
    logprobs = [[-float(i + 1)] * 2 for i in range(9)] + [[]]
    labels = np.tile([0, 1], 15)
    data = MemoryFeatures(labels, {"token_logprobs": [np.array(p) for p in logprobs * 3]})
    found = {name: PROBES[name].run(data, seed=0) for name in ("perplexity", "min_probability")}
    assert found["perplexity"].test[-1] == pytest.approx(5)
    assert found["min_probability"].test[-1] == pytest.approx(-math.exp(-5))
    assert found["min_probability"].test[-2] == pytest.approx(-math.exp(-9))


def test_unseen_category_gets_the_overall_rate() -> None:
    labels = np.array([1, 1, 1, 0, 0, 0] + [0, 1] + [0, 1])
    names = ["river", "river", "river", "capital", "capital", None, "river", "capital", "sea", None]
    data = MemoryFeatures(labels, {"category": names})
    outcome = PROBES["category"].run(data, seed=0)
    river, capital = outcome.validation
    sea, none = outcome.test
    assert capital < none < sea == 0.5 < river < 1


def test_wording_of_question_and_answer_is_a_baseline() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 200)
    wordings = [("river", "Danube"), ("capital", "Oslo")]
    values = {
        "question": [
            f"Which {wordings[label][0]} is number {n}?" for n, label in enumerate(labels)
        ],
        "answer": [None if n % 9 == 0 else wordings[label][1] for n, label in enumerate(labels)],
    }
    data = MemoryFeatures(labels, values)
    outcome = PROBES["text"].run(data, seed=0)
    assert PROBES["text"].family == "baseline"
    assert auroc(data.labels["test"], outcome.test) == 1 and outcome.parameters > 50


def test_words_that_the_source_does_not_have_are_a_baseline() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 200)
    answers = ["Built in 1912 by the Danube.", "Built in 1921 by the Rhine."]
    values = {
        "question": ["Where was it built?"] * 200,
        "context": ["It stands near the Danube since 1912."] * 200,
        "answer": [answers[label] for label in labels],
    }
    data = MemoryFeatures(labels, values)
    outcome = PROBES["source_words"].run(data, seed=0)
    assert auroc(data.labels["test"], outcome.test) == 1 and outcome.parameters == 3


def test_missing_field_is_named() -> None:
    labels, states = telling_states(40, layers=2, dim=4)
    with pytest.raises(InputError, match="semantic_entropy requires question, samples, which"):
        PROBES["semantic_entropy"].fit(MemoryFeatures(labels, {"sequence": states}), seed=0)


@pytest.mark.parametrize("changed", [slice(0, 60), slice(60, 80)])
def test_split_of_only_correct_answers_is_rejected(changed: slice) -> None:
    labels, states = telling_states(100, layers=2, dim=4)
    labels[changed] = 0
    with pytest.raises(InputError, match="0 of the .* answers in the .* split are hallucinated"):
        PROBES["linear_probe"].fit(MemoryFeatures(labels, {"sequence": states}), seed=0)


@pytest.mark.parametrize("name", ["linear_probe", "linear_probe_pca"])
def test_non_finite_states_are_reported_with_their_layer(name: str) -> None:
    labels, states = telling_states(100, layers=3, dim=4)
    states[7, 2, 1] = np.inf
    with pytest.raises(StoreError, match="sequence, layer 2, contains NaN or infinity"):
        PROBES[name].fit(MemoryFeatures(labels, {"sequence": states}), seed=0)


def test_nan_in_an_answer_to_score_is_reported() -> None:
    labels, states = telling_states(100, layers=3, dim=4)
    states[-1] = np.nan
    data: Any = MemoryFeatures(labels, {"sequence": states})
    fitted = PROBES["linear_probe"].fit(data, seed=0)
    with pytest.raises(StoreError, match="1 of 20 answers of the test split, e.g. number 19"):
        fitted.score(data, "test")
