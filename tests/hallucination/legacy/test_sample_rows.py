"""Old preprocessed sequences and graphs become stores of the corresponding kind."""

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.hallucination.legacy import convert_folder
from clew.storage.manifest import read_manifest
from clew.storage.reader import ShardReader, StoreReader, read_value
from tests.hallucination.legacy.compare import assert_graphs_equal
from tests.hallucination.legacy.old_files import DIM, LAYERS, write_sequences

pytestmark = pytest.mark.slow


def test_sequences_are_converted(tmp_path: Path) -> None:
    expected = write_sequences(tmp_path / "old" / "preprocessed_0001.pt")
    convert_folder(tmp_path / "old", tmp_path / "new")
    store = StoreReader(tmp_path / "new")
    assert store.manifest.kind == "sequences"
    batch = store.shard(0).record_batch(0)
    for row, tensor in enumerate(expected):
        values = read_value(batch.column("sequence"), row).reshape(LAYERS, DIM)
        np.testing.assert_array_equal(values, tensor.numpy(), strict=True)
    assert batch.column("label").to_pylist() == [0.0, 1.0, 0.0]
    assert batch.column("question_id").to_pylist() == ["q0", "q1", "q2"]
    assert batch.column("global_example_id").to_pylist() == [500, 501, 502]
    assert batch.schema.field("sequence").metadata == {b"shape": b"3,8"}


def test_sequences_of_another_shape_are_skipped_and_missing_labels_are_null(tmp_path: Path) -> None:
    sequences = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4)]
    path = tmp_path / "old" / "batch_0000.pt"
    path.parent.mkdir()
    torch.save({"sequences": sequences}, path)
    result = convert_folder(path.parent, tmp_path / "new")
    assert [s.reason for s in result.skipped] == [
        "its sequence has shape [2, 4], the store has [2, 3]"
    ]
    assert ShardReader(tmp_path / "new/batch_0000.arrow").read_column("label").null_count == 2


def make_graphs(graph_classes: types.ModuleType, edges: int, **extra: Any) -> list[Any]:
    return [
        graph_classes.Data(
            x=torch.randn(3 + layer, 4).half(),
            edge_index=torch.randint(0, 3, (2, edges)),
            edge_attr=torch.rand(edges, 1).half(),
            **extra,
        )
        for layer in range(2)
    ]


def test_graphs_are_converted(tmp_path: Path, graph_classes: types.ModuleType) -> None:
    path = tmp_path / "old" / "preprocessed_0000.pt"
    path.parent.mkdir()
    graphs = [make_graphs(graph_classes, 5), make_graphs(graph_classes, 0, y=torch.ones(1))]
    torch.save({"graphs": graphs, "labels": torch.tensor([1, 0]), "question_ids": [7, 8]}, path)
    assert convert_folder(path.parent, tmp_path / "new").complete
    assert_graphs_equal(tmp_path / "new" / "batch_0000.arrow", path)
    manifest = read_manifest(tmp_path / "new")
    assert manifest.kind == "graphs"
    assert manifest.settings["shape"] == {"layers": 2, "features": 4, "edge_features": 1}
    assert manifest.notes == ("the field 'y' of the old graphs was not converted",)


def test_graphs_with_edges_to_missing_nodes_are_skipped(
    tmp_path: Path, graph_classes: types.ModuleType
) -> None:
    path = tmp_path / "old" / "preprocessed_0000.pt"
    path.parent.mkdir()
    good, bad = make_graphs(graph_classes, 5), make_graphs(graph_classes, 5)
    bad[0] = graph_classes.Data(x=torch.zeros(1, 4), edge_index=torch.tensor([[0], [1]]))
    torch.save({"graphs": [good, bad]}, path)
    (skip,) = convert_folder(path.parent, tmp_path / "new").skipped
    assert skip.reason == "an edge of layer 0 leads to a node that does not exist"


def test_other_torch_files_are_skipped_with_the_reason(tmp_path: Path) -> None:
    old = tmp_path / "old"
    write_sequences(old / "batch_0001.pt")
    torch.save({"weights": torch.zeros(2)}, old / "batch_0002.pt")
    torch.save({"graphs": [1]}, old / "batch_0003.pt")
    torch.save({"sequences": [torch.zeros(1, 1)], "labels": []}, old / "batch_0004.pt")
    reasons = [skip.reason for skip in convert_folder(old, tmp_path / "new").skipped]
    assert 'contains neither "sequences" nor "graphs"' in reasons[0]
    assert "contains graphs, but the previous files contain sequences" in reasons[1]
    assert "has 1 samples but 0 labels" in reasons[2]
