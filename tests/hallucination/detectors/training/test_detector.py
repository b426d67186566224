"""A detector loaded from its file is the one that was trained."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clew.base.errors import InputError, StoreError
from clew.datasets import Loader, PreprocessedGNNMapDataset
from clew.engine.classifier import score_metrics
from clew.hallucination.detectors.detector_folder import load_detector
from tests.hallucination.detectors.training.test_train import read_results

pytestmark = pytest.mark.slow

WRITTEN_BEFORE = Path(__file__).parents[3] / "data" / "8b887bb"


@pytest.mark.parametrize("name", ["lstm", "gnn_det", "gvae"])
def test_loaded_detector_reproduces_the_metrics_of_its_training(
    trained: Path, learnable: Path, name: str
) -> None:
    [run] = [run for run in read_results(trained)["runs"] if run["model"] == name]
    detector = load_detector(trained / name / "best.safetensors")
    assert (detector.name, detector.threshold) == (name, run["threshold"])
    dataset = PreprocessedGNNMapDataset(learnable, split="test", with_sequence=True, flat=True)
    batch = next(iter(Loader(dataset, len(dataset))))
    metrics = score_metrics(detector.score(batch).logit(), batch["label"], detector.threshold)
    assert metrics["auroc"] == pytest.approx(run["test_auroc"])
    assert metrics["f1"] == pytest.approx(run["test_f1"])


def test_detector_needs_only_its_file(trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "gvae" / "best.safetensors", tmp_path)
    detector = load_detector(tmp_path)
    assert detector.config.input_dim == 8
    assert detector.metrics["auroc"] > 0.9
    assert not detector.network.training


def test_detector_of_earlier_version_can_be_loaded() -> None:
    """Commit 8b887bb trained and wrote it, and computed these probabilities."""
    detector = load_detector(WRITTEN_BEFORE / "lstm.safetensors")
    states = torch.tensor(
        [
            [[-1.5, -0.75, -0.75, -1.5], [0, -0.5, -1, -1.5], [-0.75, 0.25, -0.75, -0.25]],
            [[-0.25, 1.75, 0.25, 0.5], [-0.75, -1.25, 0.75, 0.25], [0.75, 0.25, -0.75, 0.75]],
        ]
    )
    scores = detector.score({"sequence": states, "label": torch.zeros(2)}).tolist()
    assert scores == pytest.approx([0.201372, 0.245073], abs=1e-5)
    assert detector.threshold == pytest.approx(0.3345324)
    assert detector.metrics["auroc"] == pytest.approx(0.9126984)


def test_folder_of_several_networks_names_them(trained: Path) -> None:
    with pytest.raises(StoreError, match="give the folder of one network: .*gvae, .*lstm"):
        load_detector(trained)


def test_files_that_are_not_detectors_are_rejected(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no detector in .*: give"):
        load_detector(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"clew": "{}"})
    with pytest.raises(StoreError, match='is not a detector .* that "clew train" wrote'):
        load_detector(tmp_path / "a.safetensors")
    with pytest.raises(StoreError, match=r"give a best\.safetensors"):
        load_detector(trained / "lstm" / "last.safetensors")
    (tmp_path / "best.safetensors").write_bytes(b"no tensors")
    with pytest.raises(StoreError, match="cannot be read"):
        load_detector(tmp_path)


@pytest.mark.parametrize("name", ["gnn_det", "gvae"])
def test_flat_and_pyg_graphs_get_the_same_risk(learnable: Path, trained: Path, name: str) -> None:
    detector = load_detector(trained / name)
    flat, pyg = (
        next(iter(Loader(open_graphs(learnable, flat=flat), 8, num_workers=0)))
        for flat in (True, False)
    )
    torch.testing.assert_close(detector.score(pyg), detector.score(flat))


@pytest.mark.parametrize(("name", "advice"), [("lstm", "LSTMMap"), ("gvae", "with_sequence=True")])
def test_batch_of_other_samples_is_rejected(
    learnable: Path, trained: Path, name: str, advice: str
) -> None:
    graphs = PreprocessedGNNMapDataset(learnable, split="test")
    batch = next(iter(Loader(graphs, 8, num_workers=0)))
    with pytest.raises(InputError, match=f"{name} cannot read this kind of batch.*{advice}"):
        load_detector(trained / name).score(batch)


def open_graphs(folder: Path, *, flat: bool) -> PreprocessedGNNMapDataset:
    return PreprocessedGNNMapDataset(folder, split="test", with_sequence=True, flat=flat)
