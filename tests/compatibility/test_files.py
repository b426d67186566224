"""Files of an earlier version load: stores, samples, detectors, comparisons, classifiers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import TraceBatchLoader, load_detector
from clew.datasets import Loader, PreprocessedGNNMapDataset, PreprocessedLSTMMapDataset

WRITTEN = sorted(Path(__file__).parent.glob("files_*"))
CPU = ("--device", "cpu", "--num-workers", 0, "--no-amp", "--no-compile")


@pytest.fixture(params=WRITTEN, ids=lambda path: path.name)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy: commands write locks, reports and logs next to what they open."""
    return Path(shutil.copytree(request.param, tmp_path / "files"))


@pytest.fixture
def known(files: Path) -> dict[str, Any]:
    return json.loads((files / "known_values.json").read_text(encoding="utf-8"))


def about(values: Any) -> Any:
    """Another processor sums in another order."""
    return pytest.approx(values, rel=1e-3, abs=1e-4)


def test_old_traces_open_unchanged(files: Path, known: dict[str, Any], run: Any) -> None:
    traces = TraceBatchLoader(files / "traces")
    trace = traces.get_batch(1)[3]
    expected = known["trace"]
    assert len(traces) == known["batches"]
    assert sorted(trace) == expected["columns"]
    assert {name: trace[name] for name in ("question_id", "answer")} == {
        name: expected[name] for name in ("question_id", "answer")
    }
    assert np.ravel(trace["last_hidden"])[:8].tolist() == about(expected["last_hidden"])
    assert trace["token_logprobs"].tolist() == about(expected["token_logprobs"])
    assert "is intact" in run("verify", files / "traces").out
    assert run("inspect", files / "traces").code == 0


def test_old_samples_open_unchanged(files: Path, known: dict[str, Any], run: Any) -> None:
    sequences = next(iter(Loader(open_sequences(files), 5)))
    graphs = next(iter(Loader(open_graphs(files), 5)))
    assert sequences["question_id"] == known["test_questions"]
    assert sequences["label"].tolist() == known["labels"]
    assert sequences["sequence"][0].double().sum(1).tolist() == about(known["first_sequence"])
    assert graphs.x.double().sum().item() == about(known["graph_nodes"])
    assert list(graphs.edge_index.shape) == known["graph_edges"]
    assert run("verify", files / "samples").out.count("is intact") == 3


@pytest.mark.parametrize("name", ["lstm", "gnn_det"])
def test_old_detector_predicts_the_same_risks(
    files: Path, known: dict[str, Any], name: str
) -> None:
    detector = load_detector(files / "trained" / name)
    samples = open_sequences(files) if name == "lstm" else open_graphs(files)
    assert detector.score(next(iter(Loader(samples, 5)))).tolist() == about(known[name]["scores"])
    assert detector.threshold == about(known[name]["threshold"])


@pytest.mark.slow
def test_training_finished_by_earlier_version_is_not_repeated(files: Path, run: Any) -> None:
    ended = run(
        *("train", "--preprocessed-dir", files / "samples", "--output-dir", files / "trained"),
        *("--no-run-gvae", "--lstm-hidden", 4, "--gnn-hidden", 4, "--num-lstm-layers", 1),
        *("--epochs", 2, "--batch-size", 8, *CPU),
    )
    assert ended.code == 0
    assert (ended.out + ended.err).count("already trained") == 2


@pytest.mark.slow
def test_comparison_finished_by_earlier_version_is_not_repeated(files: Path, run: Any) -> None:
    methods = sorted((files / "comparison" / "methods").iterdir())
    written = [path.read_bytes() for path in methods]
    ended = run(
        *("compare", "--preprocessed-dir", files / "samples", "--device", "cpu", "--seeds", 1),
        *("--output-dir", files / "comparison", "--methods", "perplexity,linear_probe,lookback"),
    )
    assert ended.code == 0
    assert "Perplexity" in ended.out
    assert [path.read_bytes() for path in methods] == written


@pytest.mark.slow
def test_old_classifier_identifies_photos_as_before(
    files: Path, known: dict[str, Any], run: Any
) -> None:
    library = ("--library", files / "library")
    info = run("patterns", "info", "colours", *library)
    assert info.code == 0
    assert "001" in info.out
    photos = files / "library/colours/photos"
    ended = run(
        *("patterns", "identify", photos, "--name", "colours", *library, "--device", "cpu"),
        *("--output-dir", files / "identified"),
    )
    assert ended.code == 0
    found = json.loads((files / "identified/identified.json").read_text(encoding="utf-8"))
    for photo in found["photos"]:
        name, probability = known["photos"][photo["name"]]
        assert photo["best"][0] == {"class": name, "probability": about(probability)}


def open_sequences(files: Path) -> PreprocessedLSTMMapDataset:
    return PreprocessedLSTMMapDataset(files / "samples", split="test")


def open_graphs(files: Path) -> PreprocessedGNNMapDataset:
    return PreprocessedGNNMapDataset(files / "samples", split="test", with_sequence=True)
