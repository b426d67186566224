"""Networks in a comparison: trained from several seeds, resumed, tested on other questions."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.errors import SettingsMismatchError, TrainingStoppedError
from clew.cluster.connection import Cluster
from clew.cluster.workers import Spread
from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.comparison.fitting import split_by_hardware
from clew.hallucination.detectors.registry import NetworkSettings
from tests.hallucination.comparison.making import compare_config, describe_capture, write_set
from tests.hallucination.detectors.training.making import small_act_vit, write_learnable
from tests.stores import one_thread

SMALL = NetworkSettings(lstm_hidden=8, num_lstm_layers=1, latent_dim=4)
MODEL = {"id": "tiny", "fingerprint": "abc"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "first"
    write_learnable(folder, answers=True, heads=True, signal=0.7, shards=2)
    describe_capture(folder, model=MODEL)
    return folder


def network_config(data: Path, out: Path, **changes: Any) -> CompareConfig:
    usual: dict[str, Any] = {"methods": ("perplexity", "lstm"), "network": SMALL, "seeds": 2}
    return compare_config(data, out, **usual | changes)


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["methods"]
    return {row["method"]: row for row in rows}


@pytest.mark.parametrize(("gpus", "device"), [(0, None), (2, "cpu"), (2, None)])
def test_on_a_cluster_with_gpus_only_networks_are_fitted_there(
    gpus: int, device: str | None
) -> None:
    cluster = Cluster(ray=None, cores=16, gpus=gpus, nodes=1)
    where = Spread(cluster="ray", device=device)
    fits = [(0, "lstm"), (0, "robust"), (1, "lstm"), (1, "robust")]
    parts = split_by_hardware(where, cluster, fits, {"lstm"})
    if gpus and device is None:
        networks, others = parts
        assert networks == (where, [(0, "lstm"), (1, "lstm")])
        assert others == (replace(where, device="cpu"), [(0, "robust"), (1, "robust")])
    else:
        assert parts == [(where, fits)]


@pytest.mark.slow
def test_every_network_has_a_row(data: Path, tmp_path: Path) -> None:
    names = ("lstm", "gnn_det", "gvae", "charm", "act_vit")
    with one_thread(), small_act_vit():
        made = compare_methods(network_config(data, tmp_path, methods=names, seeds=1))
    assert not made.results["excluded"]
    assert set(rows_of(tmp_path)) == set(names) == set(made.results["plans"])
    for name, row in rows_of(tmp_path).items():
        assert row["parameters"] > 0 and row["bytes_per_answer"] > 0 and row["ms_per_answer"] > 0
        assert row["test_auroc_std"] is None  # a single seed has none
        with (tmp_path / "networks" / name / "seed-0" / "log.csv").open() as file:
            history = [float(line["val_auroc"]) for line in csv.DictReader(file)]
        # Scores and labels are in the same order: the engine got the same metrics.
        assert row["val_auroc"] == pytest.approx(max(history), abs=0.01)
    assert "graphs" not in made.results["findings"]  # 8 hallucinated test answers are too few


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["the same", None])
def test_networks_are_trained_on_unions_of_sets(basis: str | None, tmp_path: Path) -> None:
    sizes = {"answers": True, "heads": False, "signal": 0.7, "shards": 2, "basis": basis}
    folders = tuple(write_set(tmp_path / name, write_learnable, **sizes) for name in "abc")
    config = network_config(
        folders[0],
        tmp_path / "out",
        methods=("lstm", "gnn_det") if basis else ("perplexity", "gnn_det"),
        seeds=1,
        train_on=folders,
        test_on=folders,
        pairs=False,
        keep_detectors="none",
    )
    with one_thread():
        results = compare_methods(config).results
    names = {row["method"] for row in results["methods"]}
    if basis is None:
        [reason] = {one["reason"] for one in results["excluded"]}
        assert reason.startswith("its nodes are states in a basis") and names == {"perplexity"}
        return
    sets = results["leave_one_out"]
    assert not results["excluded"] and names == {"lstm", "gnn_det"}
    assert np.array(sets["auroc"]).min() > 0.6 and len(set(sets["answers"])) == 1


@pytest.mark.slow
def test_stopped_network_is_resumed(data: Path, tmp_path: Path) -> None:
    asked: list[bool] = []

    def stop_late() -> bool:
        asked.append(True)
        return len(asked) > 16

    with one_thread():
        with pytest.raises(TrainingStoppedError):
            compare_methods(network_config(data, tmp_path / "broken"), should_stop=stop_late)
        assert (tmp_path / "broken" / "methods" / "perplexity.json").exists()
        assert (tmp_path / "broken" / "networks" / "lstm" / "seed-0" / "last.safetensors").exists()
        compare_methods(network_config(data, tmp_path / "broken"))
        compare_methods(network_config(data, tmp_path / "whole"))
    broken, whole = rows_of(tmp_path / "broken")["lstm"], rows_of(tmp_path / "whole")["lstm"]
    assert whole["seeds"] == 2 and whole["test_auroc_std"] is not None
    for name in ("val_auroc", "test_auroc", "test_auroc_mean", "threshold"):
        assert broken[name] == pytest.approx(whole[name], abs=1e-6)


@pytest.mark.slow
def test_other_training_settings_are_rejected_only_for_networks(data: Path, tmp_path: Path) -> None:
    with one_thread():
        compare_methods(network_config(data, tmp_path))
        other = network_config(data, tmp_path, network=NetworkSettings(lstm_hidden=16))
        with pytest.raises(SettingsMismatchError, match="results for lstm .*"):
            compare_methods(other)
        alone = network_config(data, tmp_path, network=SMALL, methods=("perplexity",), seeds=4)
        compare_methods(alone)
    assert list(rows_of(tmp_path)) == ["perplexity"]


@pytest.mark.slow
def test_network_is_tested_on_other_questions(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "second"
    write_learnable(other, answers=True, signal=0.7, shards=2, rows=60)
    describe_capture(other, model=MODEL)
    stores = (data, other)
    config = network_config(
        data, tmp_path / "out", train_on=stores, test_on=stores, methods=("lstm", "gnn_det")
    )
    with one_thread():
        transfer = compare_methods(config).results["transfer"]
    lstm, graphs = transfer["auroc"]
    assert all(cell is not None for row in lstm for cell in row)
    assert graphs[0][1] is None and graphs[1][1] is not None
    assert (tmp_path / "out" / "trained_on" / "second" / "networks" / "lstm" / "seed-1").is_dir()
