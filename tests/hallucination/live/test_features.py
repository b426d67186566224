"""The features of an answer from its token ids equal those captured and preprocessed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.training.samples import PreprocessedData
from clew.hallucination.live.features import LiveFeatures, needed_columns
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.source import PreprocessConfig
from clew.loading.buffers import BufferPool
from tests.hallucination.conftest import FitDetector
from tests.hallucination.live.making import SPLITS, pass_again, preprocess_tiny, read_traces

pytestmark = pytest.mark.slow

FIELDS = (
    *("sequence", "state_mean", "lookback", "log_diagonal_all", "log_diagonal_answer"),
    *("laplacian_top", "laplacian_answer", "node_mean", "node_max", "node_prompt"),
)
OF_STATES = (
    "sequence",
    "layer",
    "state_mean",
    "node_mean",
    "node_max",
    "node_prompt",
    "node_tokens",
)
RAGGED = ("token_logprobs", "token_entropies", "node_tokens")
TEXTS = ("question", "answer", "stop_reason")


@pytest.fixture(scope="module")
def compact(compact_store: Path, tmp_path_factory: pytest.TempPathFactory) -> PreprocessConfig:
    return preprocess_tiny(compact_store, tmp_path_factory.mktemp("live") / "compact")


@pytest.fixture(scope="module")
def full(full_store: Path, tmp_path_factory: pytest.TempPathFactory) -> PreprocessConfig:
    return preprocess_tiny(full_store, tmp_path_factory.mktemp("live") / "full")


@pytest.mark.parametrize("size", [1, 2, 7, 32])
def test_features_from_token_ids_equal_the_preprocessed_ones(
    compact: PreprocessConfig, loaded: LoadedModel, size: int
) -> None:
    stored, traces = AnswerFeatures(compact.out), read_traces(compact.store)
    for split in SPLITS if size > 1 else ("test",):
        numbers = stored.ids[split][:size].tolist()
        live = pass_again(compact.store, loaded, compact, [traces[number] for number in numbers])
        assert live.fields >= stored.fields - {"category", "accepted_answers", "prompt_length"}
        for field in (*FIELDS, *RAGGED, *TEXTS):
            values = stored.read(field, split)[:size]
            assert_close(field, live.read(field, "live"), values)
        assert_close(
            "layer", live.read("sequence", "live", layer=1), first_layer(stored, split)[:size]
        )


def first_layer(stored: AnswerFeatures, split: str) -> np.ndarray:
    return stored.read("sequence", split, layer=1)


def assert_close(name: str, found: Any, expected: Any) -> None:
    """Numbers agree within 2e-3, relative to the size of the field's values, and half a step of
    states in 8 bits."""
    if name in TEXTS:
        assert found == expected
        return
    if isinstance(found, list):
        assert [len(one) for one in found] == [len(one) for one in expected], name
        found, expected = torch.cat(found), np.concatenate(expected)
    assert found.dtype == torch.float32
    limit = 2e-3 + (1 / 254 if name in OF_STATES else 0)
    scale = max(1e-6, float(np.abs(expected).max(initial=0)))
    assert np.abs(found.numpy() - expected).max(initial=0) <= limit * scale, name


@pytest.mark.parametrize("kind", ["sequences", "graphs", "grids", "heads"])
def test_batches_for_networks_equal_those_of_the_dataset(
    full: PreprocessConfig, loaded: LoadedModel, kind: SampleKind
) -> None:
    dataset = PreprocessedData(folder=full.out).open(kind, "train")
    expected = dataset.samples.read_batch(np.arange(len(dataset)), BufferPool())
    traces = read_traces(full.store)
    numbers = dataset.index.example_ids.tolist()
    live = pass_again(full.store, loaded, full, [traces[number] for number in numbers])
    batch = live.batch(kind)
    assert {*batch} == {*expected} - {"label", "index", "question_id"}
    for name, values in batch.items():
        if isinstance(values, torch.Tensor) and values.is_floating_point():
            assert values.dtype == expected[name].dtype
            assert torch.allclose(values.float(), expected[name].float(), rtol=2e-3, atol=2e-3)
        elif isinstance(values, torch.Tensor):
            assert torch.equal(values, expected[name]), name
        else:
            assert values == expected[name]


def test_only_the_needed_columns_are_named() -> None:
    assert needed_columns({"sequence", "token_logprobs"}) == {"last_hidden"}
    assert needed_columns({"laplacian_top"}, "graphs") == {
        *("laplacian_diagonal", "last_hidden", "nodes", "edges")
    }


def test_an_answer_with_infinite_states_is_named_and_does_not_spoil_the_others(
    compact: PreprocessConfig, loaded: LoadedModel
) -> None:
    traces = [*read_traces(compact.store).values()][:3]
    live = pass_again(compact.store, loaded, compact, traces)
    before = live.read("sequence", "live")
    assert live.drop_unusable() is live
    broken = spoil(live, row=1)
    assert broken.unusable == {1: "its last_hidden contains NaN or infinity"}
    after = broken.drop_unusable().read("sequence", "live")
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after.isfinite().all()


def spoil(live: LiveFeatures, row: int) -> LiveFeatures:
    with torch.inference_mode():
        live.record.last_hidden[row, 1, 2] = torch.inf
    return LiveFeatures(live.record, live.answers, live.shape)


@pytest.mark.parametrize("method", ["linear_probe", "saplma", "token_probe"])
def test_states_of_layers_that_a_detector_does_not_name_change_no_risk(
    compact: PreprocessConfig, loaded: LoadedModel, fit: FitDetector, method: str
) -> None:
    detector = fit(method)
    traces = [*read_traces(compact.store).values()][:3]
    live = pass_again(compact.store, loaded, compact, traces)
    live = LiveFeatures(
        live.record, [replace(a, stop_reason="end") for a in live.answers], live.shape
    )
    layers = detector.state_layers
    assert layers is not None
    others = [layer for layer in range(live.layers) if layer not in layers]
    assert others
    expected = assess(detector, live)
    assert assess(detector, without_layers(live, others)) == expected
    changed = assess(detector, without_layers(live, list(layers)))
    assert all(one != other for one, other in zip(changed, expected, strict=True))


def assess(detector: Detector, live: LiveFeatures) -> tuple[list[float], list[float | None]]:
    """The method's scores, and how familiar the answers are."""
    assert detector.scorer is not None
    scores = detector.scorer.score(live, "live")
    return list(map(float, scores)), [one.distance for one in detector.assess(live)]


def without_layers(live: LiveFeatures, layers: list[int]) -> LiveFeatures:
    record = replace(live.record)
    with torch.inference_mode():
        for name in ("last_hidden", "answer_hidden", "nodes"):
            states = getattr(live.record, name).clone()
            states[:, layers] = 0
            record = replace(record, **{name: states})
    return LiveFeatures(record, live.answers, live.shape)
