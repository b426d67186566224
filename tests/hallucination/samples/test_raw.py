"""Training directly on traces: the same samples as after preprocessing."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, StoreError
from clew.datasets import (
    Loader,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMMapDataset,
    RawGNNDataset,
    RawLSTMDataset,
    collate,
)
from clew.hallucination.samples.preprocess import preprocess_store
from tests.hallucination.legacy.old_files import make_record, write_pickle, write_traces
from tests.hallucination.samples.trace_stores import (
    overwrite_value,
    tiny_preprocess,
    write_corrected,
    write_scores,
)

pytestmark = pytest.mark.slow

SPLITS = ("train", "validation", "test", None)


def test_samples_without_splits_file_are_rejected(preprocessed: Path, tmp_path: Path) -> None:
    """The file is written last: an interrupted run has none yet."""
    folder = Path(shutil.copytree(preprocessed, tmp_path / "copy"))
    (folder / "splits.csv").unlink()
    with pytest.raises(StoreError, match=r"there is no .*splits\.csv.* run the same"):
        PreprocessedLSTMMapDataset(folder)


@pytest.mark.parametrize("split", SPLITS)
def test_sequences_labels_and_splits_equal_preprocessed_ones(
    compact_store: Path, scores_file: Path, preprocessed: Path, split: str | None
) -> None:
    raw = RawLSTMDataset(compact_store, scores_file, split=split)
    made = PreprocessedLSTMMapDataset(preprocessed, split=split)
    assert len(raw) == len(made) > 0
    for one, other in zip(raw, made, strict=True):
        assert one["question_id"] == other["question_id"]
        assert one["label"] == other["label"]
        assert torch.equal(one["sequence"], other["sequence"])


def test_refused_answers_are_excluded_as_in_preprocessing(
    compact_store: Path, tmp_path: Path
) -> None:
    labels = {0: "refused", 5: "hallucinated", 6: "excluded", 9: "hallucinated"}
    scores = write_corrected(tmp_path / "scores.csv", compact_store, labels)
    preprocess_store(tiny_preprocess(compact_store, scores, tmp_path / "out", kinds=("sequences",)))
    raw, made = RawLSTMDataset(compact_store, scores), PreprocessedLSTMMapDataset(tmp_path / "out")
    assert len(raw) == len(made) == 68
    for one, other in zip(raw, made, strict=True):
        assert (one["question_id"], one["label"]) == (other["question_id"], other["label"])
        assert torch.equal(one["sequence"], other["sequence"])


def test_graphs_equal_preprocessed_ones(
    compact_store: Path, scores_file: Path, preprocessed: Path
) -> None:
    raw = RawGNNDataset(compact_store, scores_file, with_sequence=True)
    made = PreprocessedGNNMapDataset(preprocessed, with_sequence=True)
    one, other = collate([raw[i] for i in range(7)]), collate([made[i] for i in range(7)])
    for name in ("x", "edge_index", "edge_attr", "batch", "ptr", "label", "sequence"):
        assert torch.equal(one[name], other[name]), name


def test_threshold_drops_weak_edges(compact_store: Path, scores_file: Path) -> None:
    whole = RawGNNDataset(compact_store, scores_file)[0]
    strong = RawGNNDataset(compact_store, scores_file, attn_threshold=0.2)[0]
    assert strong.edge_attr.min() >= 0.2
    assert len(strong.edge_attr) == (whole.edge_attr >= 0.2).sum()


@pytest.mark.parametrize("kind", [RawLSTMDataset, RawGNNDataset])
def test_raw_datasets_work_in_the_loader(
    compact_store: Path,
    scores_file: Path,
    kind: type[RawLSTMDataset] | type[RawGNNDataset],
) -> None:
    loader = Loader(kind(compact_store, scores_file), 16, shuffle=True)
    places = np.concatenate([batch["index"].numpy() for batch in loader])
    assert sorted(places) == list(range(70))


@pytest.mark.parametrize(
    ("kind", "column", "value", "reason"),
    [
        (RawLSTMDataset, "last_hidden", np.nan, "its last_hidden contains NaN or infinity"),
        (RawGNNDataset, "nodes", np.inf, "its nodes or edges contain NaN or infinity"),
        (RawGNNDataset, "edge_source", 60_000, "an edge leads from a token to an earlier one"),
    ],
)
def test_trace_with_nan_stops_the_run(
    store: Path, scores_file: Path, kind: Any, column: str, value: float, reason: str
) -> None:
    """What `clew preprocess` excludes must not be trained on either."""
    overwrite_value(store / "batch_0001.arrow", column, 13, 0, value)
    data = kind(store, scores_file)
    broken = int(np.flatnonzero(data.index.rows == 33)[0])
    question = data.index.question_ids[broken]
    named = rf"the trace of {question} in .* cannot be used for training: {reason}"
    with pytest.raises(StoreError, match=named):
        data[broken]
    with pytest.raises(StoreError, match=named):
        list(Loader(data, 16))


def test_trace_without_a_score_is_named(compact_store: Path, tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "few.csv", 60)
    with pytest.raises(InputError, match=r"10 of 70 answers have no score"):
        RawLSTMDataset(compact_store, scores)


def write_old_scores(path: Path, count: int) -> Path:
    lines = [f"q{100 * batch + i},{i % 2}" for batch in range(2) for i in range(count)]
    path.write_text("\n".join(["question_id,score", *lines]) + "\n")
    return path


def test_pattern_of_old_pickles_is_converted(tmp_path: Path) -> None:
    old, store = tmp_path / "old", tmp_path / "store"
    for batch in (0, 1):
        write_traces(old, batch, count=4)
    write_pickle(old / "notes.txt.pkl.bak", ["not for us"])
    scores = write_old_scores(tmp_path / "scores.csv", 4)
    data = RawLSTMDataset(f"{old}/*.pkl.gz", scores, converted=store)
    assert len(data) == 8
    last = make_record(101)["hidden_states"]
    sample = next(s for s in data if s["question_id"] == "q101")
    np.testing.assert_array_equal(sample["sequence"], np.stack(last)[:, -1])
    assert sample["label"] == 0
    again = RawGNNDataset(f"{old}/*.pkl.gz", scores, converted=store)
    assert len(again) == 8


def test_pattern_selects_files(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for batch in (0, 1):
        write_traces(old, batch, count=4)
    scores = write_old_scores(tmp_path / "scores.csv", 4)
    assert len(RawLSTMDataset(f"{old}/*_0001.pkl*", scores, converted=tmp_path / "store")) == 4


def test_pattern_requires_a_folder_for_its_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give a folder for the converted store"):
        RawLSTMDataset(f"{tmp_path}/*.pkl*", tmp_path / "scores.csv")


def test_pattern_that_matches_nothing_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"clew looked for \*\.pkl\*"):
        RawLSTMDataset(f"{tmp_path}/*.pkl*", tmp_path / "s.csv", converted=tmp_path / "store")


def test_damaged_file_stops_the_run(tmp_path: Path) -> None:
    old = tmp_path / "old"
    write_traces(old, 0, count=4)
    (old / "trivia_qa_traces_batch_0001.pkl").write_bytes(b"\x80\x04cut")
    scores = write_old_scores(tmp_path / "scores.csv", 4)
    with pytest.raises(InputError, match=r"1 files or records .* cannot be used"):
        RawLSTMDataset(f"{old}/*.pkl*", scores, converted=tmp_path / "store")
