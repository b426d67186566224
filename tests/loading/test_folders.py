"""Folders that hold something unexpected, and legacy folders."""

import shutil
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from clew.base.errors import ClewError, InputError, StoreError
from clew.datasets import (
    Loader,
    PreprocessedGNNDataset,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from clew.hallucination.legacy import convert_folder
from clew.storage.manifest import write_manifest
from tests.hallucination.legacy.old_files import graph_classes, write_sequences
from tests.loading.reading import flat, places_of
from tests.samples import write_graphs, write_samples
from tests.stores import new_manifest, write_store

pytestmark = pytest.mark.slow

__all__ = ["graph_classes"]

LEGACY = Path(__file__).parents[3] / "shared/data/legacy/preprocessed_data"
BOTH = [PreprocessedLSTMDataset, PreprocessedGNNDataset]


def rewrite_splits(folder: Path, **replacements: str) -> None:
    path = folder / "splits.csv"
    text = path.read_text()
    for old, new in replacements.items():
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize("kind", BOTH)
def test_splits_of_other_questions_are_refused(folder: Path, kind: Any) -> None:
    """Ids start at 0 in every store: only the questions tell stores apart."""
    rewrite_splits(folder, **{"question-": "stranger-"})
    with pytest.raises(
        StoreError, match=r"splits\.csv and batch_0000\.arrow .* list different samples"
    ):
        list(kind(folder))


def test_splits_with_sorted_rows_are_refused(folder: Path) -> None:
    head, *rows = (folder / "splits.csv").read_text().splitlines()
    (folder / "splits.csv").write_text("\n".join([head, *reversed(rows)]) + "\n")
    with pytest.raises(StoreError, match='run the "clew preprocess" command again'):
        list(PreprocessedLSTMDataset(folder))


def test_splits_of_a_larger_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    other = write_samples(tmp_path / "other", shards=5, rows=30, graphs=False)
    shutil.copy(other / "splits.csv", folder / "splits.csv")
    with pytest.raises(
        StoreError, match=r"splits\.csv lists 150 samples, .*sequences contains 105"
    ):
        PreprocessedLSTMDataset(folder)


def test_truncated_splits_are_refused(folder: Path) -> None:
    text = (folder / "splits.csv").read_text()
    (folder / "splits.csv").write_text("".join(text.splitlines(keepends=True)[:40]))
    with pytest.raises(StoreError, match=r"lists 39 samples, .* contains 105: run the"):
        PreprocessedLSTMDataset(folder)
    (folder / "splits.csv").write_text(text[: len(text) - 9])
    with pytest.raises(ClewError, match=r"splits\.csv"):
        PreprocessedLSTMDataset(folder)


def test_missing_splits_are_assigned_the_same_way_again(folder: Path) -> None:
    written = PreprocessedLSTMMapDataset(folder).index
    (folder / "splits.csv").unlink()
    for kind in (PreprocessedLSTMMapDataset, PreprocessedGNNMapDataset):
        chosen = kind(folder).index
        for name in ("rows", "example_ids", "question_ids", "labels", "splits"):
            np.testing.assert_array_equal(getattr(chosen, name), getattr(written, name))


def test_converted_label_is_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "old" / "preprocessed_0000.pt"
    write_sequences(path)
    content = torch.load(path, weights_only=False)
    content["labels"][1] = torch.tensor(2.0)
    torch.save(content, path)
    convert_folder(tmp_path / "old", tmp_path / "store")
    with pytest.raises(StoreError, match="neither 0 .correct. nor 1 .hallucinated., e.g. 2 of q1"):
        PreprocessedLSTMDataset(tmp_path / "store")


def test_error_names_store_that_was_not_created(folder: Path) -> None:
    shutil.rmtree(folder / "graphs")
    with pytest.raises(StoreError, match="has no graphs: .* again without `graphs=False`"):
        PreprocessedGNNDataset(folder)
    shutil.rmtree(folder / "sequences")
    with pytest.raises(StoreError, match="has no sequences: .* again without `sequences=False`"):
        PreprocessedGNNDataset(write_only_graphs(folder), with_sequence=True)


def write_only_graphs(folder: Path) -> Path:
    write_graphs(folder / "graphs", 5, 21, 3, 5, 7, 10)
    return folder


def test_dataset_opens_a_store_directly(samples: Path) -> None:
    assert len(PreprocessedLSTMDataset(samples / "sequences", split="test")) == len(
        PreprocessedLSTMDataset(str(samples), split="test")
    )
    with pytest.raises(StoreError, match=r"graphs contains graphs, not sequences: give the folder"):
        PreprocessedLSTMDataset(samples / "graphs")


def test_sequences_of_other_samples_than_the_graphs_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    """Converted stores have no splits.csv that would tie both together."""
    (folder / "splits.csv").unlink()
    other = write_samples(tmp_path / "other", shards=5, rows=20, graphs=False)
    shutil.rmtree(folder / "sequences")
    shutil.copytree(other / "sequences", folder / "sequences")
    with pytest.raises(StoreError, match="different samples"):
        PreprocessedGNNDataset(folder, with_sequence=True)


def test_traces_are_refused_as_samples(compact_store: Path) -> None:
    with pytest.raises(StoreError, match="contains traces, not sequences: create training samples"):
        PreprocessedLSTMDataset(compact_store)


def test_unrelated_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="contains samples, not graphs"):
        PreprocessedGNNDataset(write_store(tmp_path / "store"))


def test_empty_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "sequences"
    store.mkdir()
    write_manifest(store, replace(new_manifest(0), kind="sequences"))
    with pytest.raises(
        StoreError, match="contains no samples yet: rerun the command that creates it"
    ):
        PreprocessedLSTMDataset(tmp_path)


def test_missing_folder_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store at .*nowhere.*Check the path"):
        PreprocessedLSTMDataset(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file: give the folder"):
        PreprocessedLSTMDataset(tmp_path / "file")


@pytest.mark.parametrize("inner", ["", "lstm_solo"])
def test_files_of_the_original_preprocessing_are_read(tmp_path: Path, inner: str) -> None:
    old, cache = tmp_path / "old", tmp_path / "cache"
    expected = write_sequences(old / inner / "preprocessed_0001.pt", count=9)
    before = sorted(old.rglob("*"))
    dataset = PreprocessedLSTMMapDataset(old, cache_dir=cache)
    assert all(torch.equal(dataset[n]["sequence"], tensor) for n, tensor in enumerate(expected))
    assert sorted(old.rglob("*")) == before
    [made] = cache.glob("clew-converted/old-*")
    shard = next(made.rglob("batch_*.arrow")).stat()
    stream = DataLoader(PreprocessedLSTMDataset(old, cache_dir=cache), batch_size=4)
    assert sorted(flat(places_of(stream))) == list(range(9))
    assert next(made.rglob("batch_*.arrow")).stat() == shard  # converted once
    changed = write_sequences(old / inner / "preprocessed_0001.pt", count=5)
    dataset = PreprocessedLSTMMapDataset(old, cache_dir=cache)
    assert len(dataset) == 5 and torch.equal(dataset[4]["sequence"], changed[4])


def test_old_files_opened_several_times_at_once_are_converted_once(tmp_path: Path) -> None:
    for number in range(3):
        write_sequences(tmp_path / "lstm_solo" / f"preprocessed_{number:04d}.pt")

    def count(_: int) -> int:
        return len(PreprocessedLSTMMapDataset(tmp_path, cache_dir=tmp_path / "cache"))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(count, range(4))) == [9] * 4
    assert len([*(tmp_path / "cache").rglob("batch_*.arrow")]) == 3


def test_unusable_file_of_the_original_preprocessing_is_named(tmp_path: Path) -> None:
    write_sequences(tmp_path / "lstm_solo" / "preprocessed_0000.pt")
    (tmp_path / "lstm_solo" / "preprocessed_0001.pt").write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(InputError, match=r"1 files or .*preprocessed_0001\.pt.*clew convert"):
            PreprocessedLSTMDataset(tmp_path, cache_dir=tmp_path / "cache")


def test_converted_sequences_are_read(tmp_path: Path) -> None:
    expected = write_sequences(tmp_path / "old" / "preprocessed_0001.pt", count=9)
    convert_folder(tmp_path / "old", tmp_path / "new")
    dataset = PreprocessedLSTMMapDataset(tmp_path / "new")
    for place, tensor in enumerate(expected):
        assert torch.equal(dataset[place]["sequence"], tensor)
        assert dataset[place]["label"] == place % 2
        assert dataset[place]["question_id"] == f"q{place}"
    stream = DataLoader(PreprocessedLSTMDataset(tmp_path / "new"), batch_size=4)
    assert sorted(flat(places_of(stream))) == list(range(9))


def test_converted_graphs_are_read(tmp_path: Path, graph_classes: types.ModuleType) -> None:
    graphs = [old_graphs(graph_classes, edges) for edges in (5, 0, 2)]
    content = {"graphs": graphs, "labels": torch.tensor([1, 0, 1]), "question_ids": [7, 8, 9]}
    save(tmp_path / "old" / "preprocessed_0000.pt", content)
    convert_folder(tmp_path / "old", tmp_path / "new")
    (batch,) = Loader(PreprocessedGNNDataset(tmp_path / "new"), 8)
    for graph, expected in zip(
        batch.to_data_list(), [layer for sample in graphs for layer in sample], strict=True
    ):
        for name in ("x", "edge_index", "edge_attr"):
            assert torch.equal(graph[name], expected[name])
    assert batch.question_id == ["7", "8", "9"]


def old_graphs(graph_classes: types.ModuleType, edges: int, **changes: Any) -> list[Any]:
    fields = {"edge_attr": torch.rand(edges, 1).half(), **changes}
    return [
        graph_classes.Data(
            x=torch.randn(3 + layer, 4).half(),
            edge_index=torch.randint(0, 3, (2, edges)),
            **{name: value for name, value in fields.items() if value is not None},
        )
        for layer in range(2)
    ]


def save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir()
    torch.save(content, path)


def test_converted_samples_without_labels_cannot_be_trained_on(tmp_path: Path) -> None:
    save(tmp_path / "old" / "batch_0000.pt", {"sequences": [torch.zeros(2, 3)] * 3})
    convert_folder(tmp_path / "old", tmp_path / "new")
    with pytest.raises(StoreError, match="3 of 3 samples in .* have no label"):
        PreprocessedLSTMDataset(tmp_path / "new")


def test_converted_graphs_without_weights_name_the_missing_column(
    tmp_path: Path, graph_classes: types.ModuleType
) -> None:
    graphs = [old_graphs(graph_classes, 2, edge_attr=None)]
    content = {"graphs": graphs, "labels": torch.tensor([1]), "question_ids": [7]}
    save(tmp_path / "old" / "preprocessed_0000.pt", content)
    convert_folder(tmp_path / "old", tmp_path / "new")
    with pytest.raises(StoreError, match='no column "edge_attr"'):
        PreprocessedGNNDataset(tmp_path / "new")


@pytest.mark.skipif(not LEGACY.exists(), reason="the legacy files are not here")
def test_files_written_by_the_older_tools_are_read(tmp_path: Path) -> None:
    for kind, name, dataset in (
        ("sequences", "lstm_solo", PreprocessedLSTMDataset),
        ("graphs", "gnn", PreprocessedGNNDataset),
    ):
        convert_folder(LEGACY / name, tmp_path / kind)
        batches = places_of(DataLoader(dataset(tmp_path), batch_size=4))
        assert sorted(flat(batches)) == list(range(len(dataset(tmp_path))))
        assert flat(batches)


def test_split_without_samples_gives_no_batches(folder: Path) -> None:
    rewrite_splits(folder, validation="train")
    dataset = PreprocessedLSTMDataset(folder, split="validation")
    assert len(dataset) == 0
    assert list(DataLoader(dataset, batch_size=8)) == list(Loader(dataset, 8, shuffle=True)) == []


def test_invalid_label_names_its_line(folder: Path) -> None:
    lines = (folder / "splits.csv").read_text().splitlines()
    lines[7] = lines[7].replace(",0,", ",maybe,").replace(",1,", ",maybe,")
    (folder / "splits.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"splits\.csv.*maybe"):
        PreprocessedLSTMDataset(folder)
