"""Bad input: non-finite values, missing scores, one class, empty stores, odd names, a full disk."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clew.base.errors import DiskFullError, InputError, StoreError
from clew.hallucination.labels.label import label_store
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.splits import read_splits
from clew.storage.manifest import read_manifest, write_manifest
from clew.storage.verify import verify_store
from tests.hallucination.samples.trace_stores import (
    KINDS,
    overwrite_value,
    read_samples,
    read_traces,
    rewrite_rows,
    tiny_preprocess,
    write_corrected,
    write_scores,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("last_hidden", np.nan, "its last_hidden contains NaN or infinity"),
        ("nodes", np.inf, "its nodes contains NaN or infinity"),
        ("edge_weight", np.nan, "its edge_weight contains NaN or infinity"),
        ("edge_source", 60_000, "an edge leads from a token to an earlier one"),
    ],
)
def test_trace_with_nan_is_excluded_from_everything(
    store: Path, scores_file: Path, tmp_path: Path, column: str, value: float, reason: str
) -> None:
    overwrite_value(store / "batch_0001.arrow", column, 13, 0, value)
    out = tmp_path / "out"
    result = preprocess_store(tiny_preprocess(store, scores_file, out))
    lost = read_traces(store)[33]
    [skip] = result.skipped
    assert (skip["question_id"], skip["reason"]) == (lost["question_id"], reason)
    assert (skip["file"], skip["record"]) == ("batch_0001.arrow", 13)
    assert (result.samples, result.complete) == (69, False)
    left = [
        t["global_example_id"]
        for t in read_traces(store)
        if t["question_id"] != lost["question_id"]
    ]
    for kind in KINDS:
        assert [row["global_example_id"] for row in read_samples(out / kind)] == left
        assert not verify_store(out / kind)
    assert read_splits(out / "splits.csv").global_example_id.tolist() == left
    again = preprocess_store(tiny_preprocess(store, scores_file, out))
    assert (again.made, again.skipped) == (0, result.skipped)


def test_traces_next_to_one_of_the_wrong_size_are_still_checked(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    tokens = [trace["tokens"].tolist() for trace in read_traces(compact_store)]
    tokens[3] = tokens[3][:-1]
    store = rewrite_rows(compact_store, tmp_path / "traces", 35, tokens=tokens)
    overwrite_value(store / "batch_0000.arrow", "last_hidden", 8, 0, np.nan)
    result = preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    assert [(skip["record"], skip["reason"]) for skip in result.skipped] == [
        (3, "its nodes is missing or does not match its tokens"),
        (8, "its last_hidden contains NaN or infinity"),
    ]


def test_scores_of_other_answers_are_rejected(compact_store: Path, tmp_path: Path) -> None:
    """Two models that answer the same questions have the same ids."""
    label_store(compact_store, tmp_path / "scores.csv")
    answers = [trace["answer"] for trace in read_traces(compact_store)]
    other = rewrite_rows(
        compact_store, tmp_path / "other", 20, answer=[f"{answer} indeed" for answer in answers]
    )
    with pytest.raises(InputError, match="does not match the answers in the store: q"):
        preprocess_store(tiny_preprocess(other, tmp_path / "scores.csv", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_shard_without_usable_traces_is_skipped(
    full_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    store = rewrite_rows(full_store, tmp_path / "traces", 1)
    overwrite_value(store / "batch_0003.arrow", "nodes", 0, 2, np.nan)
    out = tmp_path / "out"
    for made in (11, 0):
        result = preprocess_store(tiny_preprocess(store, scores_file, out))
        assert (result.made, result.samples) == (made, 11)
    assert not (out / "graphs" / "batch_0003.arrow").exists()
    assert not verify_store(out / "graphs")


def test_store_without_usable_traces_is_rejected(
    full_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(full_store, tmp_path / "store"))
    for path in store.glob("batch_*.arrow"):
        for row in range(min(5, len(read_traces(store)))):
            if not (path.name == "batch_0002.arrow" and row > 1):
                overwrite_value(path, "last_hidden", row, 0, np.inf)
    with pytest.raises(InputError, match="none of the traces of .* can be used, e.g. q"):
        preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))


def test_missing_scores_are_rejected_or_skipped(compact_store: Path, tmp_path: Path) -> None:
    scores, out = write_scores(tmp_path / "scores.csv", 68), tmp_path / "out"
    with pytest.raises(InputError, match="2 of 70 answers have no score .*`skip_unlabeled=True`"):
        preprocess_store(tiny_preprocess(compact_store, scores, out))
    assert not out.exists()
    result = preprocess_store(tiny_preprocess(compact_store, scores, out, skip_unlabeled=True))
    assert sorted(skip["question_id"] for skip in result.skipped) == ["q68", "q69"]
    assert (result.samples, result.complete) == (68, True)
    assert not verify_store(out / "sequences")


@pytest.mark.parametrize(
    ("refused", "samples", "hallucinated"), [("exclude", 66, 26), ("hallucinated", 69, 29)]
)
def test_refused_answers_are_excluded_and_counted_or_hallucinated(
    compact_store: Path, tmp_path: Path, refused: str, samples: int, hallucinated: int
) -> None:
    labels = dict.fromkeys(range(3), "refused") | {3: "excluded"}
    labels |= dict.fromkeys(range(4, 30), "hallucinated")
    scores = write_corrected(tmp_path / "scores.csv", compact_store, labels)
    out = tmp_path / "out"
    config = tiny_preprocess(compact_store, scores, out, kinds=("answers",), refused=refused)
    result = preprocess_store(config)
    assert (result.samples, result.refused, result.complete) == (samples, 69 - samples, True)
    assert sum(split["hallucinated"] for split in result.splits.values()) == hallucinated
    assert AnswerFeatures(out).refused == 69 - samples


def test_single_class_is_preprocessed_with_a_warning(compact_store: Path, tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "scores.csv", 70, **{f"q{i}": 1.0 for i in range(70)})
    result = preprocess_store(tiny_preprocess(compact_store, scores, tmp_path / "out"))
    assert result.samples == 70
    [warning] = result.warnings
    assert warning.startswith(
        "all 70 answers are correct (score of at least 0.5): a detector cannot"
    )


def test_score_equal_to_the_threshold_is_correct(compact_store: Path, tmp_path: Path) -> None:
    """0.7 as float32 is a little less than 0.7."""
    scores = write_scores(tmp_path / "scores.csv", 70, q0=0.7, q1=0.6999)
    config = tiny_preprocess(compact_store, scores, tmp_path / "out", score_threshold=0.7)
    preprocess_store(config)
    rows = {row["question_id"]: row["label"] for row in read_samples(tmp_path / "out/sequences")}
    assert (rows["q0"], rows["q1"]) == (0.0, 1.0)


def test_equal_questions_stay_in_one_split(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    """70 ids, seven questions; case, accents and punctuation hide that they are the same."""
    spellings = ("Who wrote Café {}?", "who wrote cafe {}", "WHO WROTE  THE CAFE {}!")
    texts = [spellings[i % 3].format(i % 7) for i in range(70)]
    store = rewrite_rows(compact_store, tmp_path / "traces", 20, question=texts)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    splits = read_splits(tmp_path / "out" / "splits.csv").split
    assert all(len({*splits[[i for i in range(70) if i % 7 == k]].tolist()}) == 1 for k in range(7))
    assert len(set(splits.tolist())) == 3


def test_answers_to_one_question_stay_in_one_split(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    ids = [f"q{i // 5}" for i in range(70)]
    store = rewrite_rows(
        compact_store, tmp_path / "traces", 20, question_id=ids, question=[None] * 70
    )
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    listed = read_splits(tmp_path / "out" / "splits.csv")
    assert len(set(zip(listed.question_id.to_pylist(), listed.split.tolist(), strict=True))) == 14


def test_store_without_traces_is_rejected(store: Path, scores_file: Path, tmp_path: Path) -> None:
    write_manifest(store, replace(read_manifest(store), shards=()))
    with pytest.raises(InputError, match="has no traces yet"):
        preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))


def test_samples_are_rejected_as_traces(
    preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="contains graphs, not traces"):
        preprocess_store(tiny_preprocess(preprocessed / "graphs", scores_file, tmp_path / "out"))


def test_odd_folder_names_work(compact_store: Path, scores_file: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(compact_store, tmp_path / "trazas ñ [1]"))
    out = tmp_path / "mis datos ¿?" / "prépa"
    ids = [f'{i},"x"\r\n\u2028é' for i in range(70)]
    odd = rewrite_rows(store, tmp_path / "odd ids", 20, question_id=ids)
    assert preprocess_store(tiny_preprocess(store, scores_file, out)).samples == 70
    scores = tmp_path / "scores.csv"
    quoted = [i.replace('"', '""') for i in ids]
    body = "".join(f'"{i}",{row % 2}\n' for row, i in enumerate(quoted))
    scores.write_text(f"question_id,score\n{body}", newline="")
    preprocess_store(tiny_preprocess(odd, scores, tmp_path / "out"))
    assert read_splits(tmp_path / "out/splits.csv").question_id.to_pylist() == ids


def test_full_disk_is_detected_before_writing(
    compact_store: Path, scores_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little_room(_path: Any) -> SimpleNamespace:
        return SimpleNamespace(free=1000)

    monkeypatch.setattr("shutil.disk_usage", little_room)
    with pytest.raises(DiskFullError, match="may write up to .* 1 kB free"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path / "out"))
    assert not list(tmp_path.rglob("manifest.json"))


def test_splits_by_file_follow_the_batches(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    config = tiny_preprocess(compact_store, scores_file, tmp_path / "out", split_by="file")
    preprocess_store(config)
    splits = read_splits(tmp_path / "out" / "splits.csv").split.tolist()
    assert splits == [0] * 40 + [1] * 20 + [2] * 10
    store = rewrite_rows(compact_store, tmp_path / "traces", 70)
    with pytest.raises(InputError, match="requires at least 3 shards .* the store has 1"):
        preprocess_store(replace(config, store=store, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "skip",
    [
        {"file": "batch_0000.arrow", "reason": "a"},
        {"file": "batch_0000.arrow", "reason": "a", "record": None, "question_id": "q"},
        {"where": "question 1", "reason": "a"},
    ],
    ids=["no record", "null", "of a capture"],
)
def test_edited_list_of_skipped_traces_is_refused(
    compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path, skip: dict[str, Any]
) -> None:
    out = Path(shutil.copytree(preprocessed, tmp_path / "out"))
    store = out / "graphs"
    write_manifest(store, replace(read_manifest(store), skipped=(skip,)))
    with pytest.raises(StoreError, match=r"damaged \(skipped\[0\].* restore it from a backup"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, out))
