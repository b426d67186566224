"""Fields of answers, read split by split: values, order, and errors."""

import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

from clew.base.errors import InputError, StoreError
from clew.datasets import AnswerFeatures, PreprocessedLSTMMapDataset
from clew.loading.splits import SPLIT_NAMES
from tests.samples import (
    SampleSizes,
    answer_of,
    graph_of,
    label,
    question_id,
    sequence_of,
    write_samples,
)

pytestmark = pytest.mark.slow

SIZES = SampleSizes(layers=3, heads=2, dim=8, features=5, max_tokens=7)
TEXTS = ("question", "category", "accepted_answers", "answer", "stop_reason", "samples")
SINGLE = ("p_true", "entailment")  # in single precision
RAGGED = ("token_logprobs", "token_entropies")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples with answers. Shared: do not modify."""
    return write_samples(tmp_path_factory.mktemp("told") / "data", answers=True)


@pytest.mark.parametrize("split", SPLIT_NAMES)
def test_every_field_has_the_order_of_the_samples(told: Path, split: str) -> None:
    data, dataset = AnswerFeatures(told), PreprocessedLSTMMapDataset(told, split=split)
    numbers = data.ids[split].tolist()
    assert data.question_ids[split].tolist() == dataset.index.question_ids.tolist()
    assert data.question_ids[split].tolist() == [question_id(number) for number in numbers]
    np.testing.assert_array_equal(data.labels[split], label(np.array(numbers)))
    expected = [answer_of(number, SIZES) for number in numbers]
    assert data.fields == {"sequence", "node_tokens", *expected[0]}
    for name in data.fields - {"sequence", "node_tokens", *TEXTS, *RAGGED}:
        stored = np.float32 if name in SINGLE else np.float16
        values = np.array([answer[name] for answer in expected], stored).astype(np.float32)
        np.testing.assert_array_equal(data.read(name, split), values, strict=True)
    for name in TEXTS:
        assert data.read(name, split) == [answer[name] for answer in expected]
    for name in RAGGED:
        for found, answer in zip(data.read(name, split), expected, strict=True):
            np.testing.assert_array_equal(found, answer[name].astype(np.float32), strict=True)


def test_single_layer_can_be_read(told: Path) -> None:
    data = AnswerFeatures(told)
    assert (data.layers, data.heads, data.dim) == (3, 2, 8)
    for layer in range(3):
        expected = [sequence_of(number, 3, 8)[layer] for number in data.ids["test"]]
        found = data.read("sequence", "test", layer=layer)
        np.testing.assert_array_equal(found, np.array(expected, np.float32), strict=True)
    top = data.read("laplacian_top", "train")
    np.testing.assert_array_equal(data.read("laplacian_top", "train", layer=1), top[:, 1])


def test_states_of_answer_tokens_are_read_from_the_graphs(told: Path) -> None:
    data = AnswerFeatures(told)
    found, prompts = data.read("node_tokens", "test"), data.read("prompt_length", "test")
    for number, values, prompt in zip(data.ids["test"].tolist(), found, prompts, strict=True):
        graph = graph_of(number, 3, 5, 7)["nodes"].astype(np.float32).reshape(3, -1, 5)
        np.testing.assert_array_equal(values, graph[:, int(prompt) :].transpose(1, 0, 2))
    second = data.read("node_tokens", "test", layer=1)
    np.testing.assert_array_equal(np.concatenate(second), np.concatenate(found)[:, 1])
    tokens = [len(one) for split in SPLIT_NAMES for one in data.read("token_logprobs", split)]
    assert data.bytes_of("node_tokens") == pytest.approx(np.mean(tokens) * 3 * 5 * 2)


def test_large_reads_are_split(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AnswerFeatures(told).read("state_mean", "train")
    monkeypatch.setattr("clew.hallucination.samples.answers._READ_BYTES", 100)
    np.testing.assert_array_equal(AnswerFeatures(told).read("state_mean", "train"), whole)


def test_values_read_do_not_stay_in_memory(tmp_path: Path) -> None:
    """40 MB of states, read layer by layer."""
    folder = write_samples(
        tmp_path / "data", shards=2, rows=160, layers=16, dim=4096, graphs=False, batch_rows=40
    )
    data, process = AnswerFeatures(folder), psutil.Process()
    data.read("sequence", "train", layer=0)
    before = process.memory_info().rss
    for layer in range(16):
        data.read("sequence", "train", layer=layer)
    assert process.memory_info().rss - before < 20e6


def test_sequences_are_readable_without_answers(folder: Path) -> None:
    data = AnswerFeatures(folder)
    assert data.fields == {"sequence"} and data.samples == {"sequences", "graphs"}
    assert data.heads is None and data.read("sequence", "test").shape[1:] == (3, 8)
    assert data.bytes_of("sequence") == 48 and data.bytes_of("graphs") > 100


def test_answers_are_readable_without_sequences(told: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(told, tmp_path / "data"))
    shutil.rmtree(folder / "sequences")
    data = AnswerFeatures(folder)
    assert (data.layers, data.dim) == (3, 8) and "sequence" not in data.fields
    assert data.bytes_of("laplacian_top") == 2 * 3 * 2 * 25


def test_identity_names_model_and_questions(tmp_path: Path) -> None:
    capture = {"model": {"id": "m", "fingerprint": "f"}, "questions": {"sha256": "q"}}
    source = {"store": "traces", "model": "m", "sha256": "s", "capture": capture}
    settings = {"command": "preprocess", "source": source, "sources": [], "top_k": 4}
    data = AnswerFeatures(write_samples(tmp_path / "data", answers=True, settings=settings))
    assert data.identity == {"store": "traces", "sha256": "s", **capture}
    assert data.settings == {"capture": capture, "preprocess": {"top_k": 4}}


@pytest.mark.parametrize(
    ("field", "split", "layer", "sentence"),
    [
        ("moon", "train", None, 'has no field "moon", only accepted_answers, answer, '),
        ("label", "train", None, 'has no field "label"'),
        ("sequence", "dev", None, 'split is "dev": choose from: train, validation, test'),
        ("sequence", "train", 3, '"sequence" has no layer 3: its layers are 0 to 2'),
        ("answer", "train", 0, '"answer" has no layer 0: it has no layers'),
        ("token_logprobs", "train", 0, "it has no layers"),
    ],
)
def test_missing_fields_layers_and_splits_are_errors(
    told: Path, field: str, split: str, layer: int | None, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        AnswerFeatures(told).read(field, split, layer=layer)


def test_incomplete_folders_are_rejected(told: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains neither answers nor sequences"):
        AnswerFeatures(tmp_path)
    folder = Path(shutil.copytree(told, tmp_path / "data"))
    shard = folder / "answers" / "batch_0001.arrow"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(StoreError, match="it was truncated or replaced"):
        AnswerFeatures(folder).read("lookback", "train")
    other = write_samples(tmp_path / "other", shards=2, answers=True)
    shutil.rmtree(folder / "answers")
    shutil.copytree(other / "answers", folder / "answers")
    with pytest.raises(StoreError, match="lists 100 samples, but .*answers contains 50"):
        AnswerFeatures(folder)
