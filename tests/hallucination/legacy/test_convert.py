"""Old folders become stores with the same arrays."""

from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.base.urls import as_path
from clew.hallucination.legacy import convert_folder
from clew.hallucination.traces import TraceBatchLoader, extract_batch_subset
from clew.storage.manifest import read_manifest
from clew.storage.verify import verify_store
from tests.hallucination.legacy.compare import assert_same_arrays
from tests.hallucination.legacy.old_files import (
    ANSWER,
    DIM,
    HEADS,
    LAYERS,
    PROMPT,
    RunsCommand,
    make_record,
    write_pickle,
    write_sequences,
    write_traces,
)

pytestmark = pytest.mark.slow


def test_arrays_are_converted_unchanged(tmp_path: Path) -> None:
    for batch in (0, 1):
        write_traces(tmp_path / "old", batch)
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert (result.stores, result.traces, result.files) == ((tmp_path / "new",), 4, 2)
    assert result.complete
    assert verify_store(tmp_path / "new") == []
    loader = TraceBatchLoader(tmp_path / "new")
    for global_id, seed in {0: 0, 1: 1, 500: 100, 501: 101}.items():
        trace = loader.get_trace_by_global_id(global_id)
        assert trace is not None
        assert_same_arrays(trace, make_record(seed))
        assert trace["question_id"] == f"q{seed}"
    assert loader.get_trace_by_global_id(2) is None


def test_fields_of_newer_records_are_converted(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0, 1)
    convert_folder(tmp_path / "old", tmp_path / "new")
    trace = TraceBatchLoader(tmp_path / "new").get_batch(0)[0]
    assert trace["question"] == "who sang"
    assert trace["answer"] == trace["generated_answer_clean"] == " Abba"
    assert trace["prompt_length"] == len(PROMPT)
    assert trace["accepted_answers"] == []
    assert trace["tokens_decoded"] == [*PROMPT, *ANSWER]
    for name in ("category", "stop_reason", "token_logprobs", "token_entropies"):
        assert trace[name] is None


def test_fields_of_older_records_are_converted(tmp_path: Path) -> None:
    record = make_record(
        question="who sang it?",
        answer=["Abba", "ABBA"],
        prompt_length=7,
        example_id=3,
        global_example_id=2003,
        batch_number=4,
    )
    write_pickle(tmp_path / "old" / "trivia_qa_traces_batch_0004.pkl", [record])
    convert_folder(tmp_path / "old", tmp_path / "new")
    trace = TraceBatchLoader(tmp_path / "new").get_trace_by_global_id(2003)
    assert trace is not None
    assert trace["question"] == "who sang it?"
    assert trace["accepted_answers"] == ["Abba", "ABBA"]
    assert (trace["prompt_length"], trace["example_id"], trace["batch_number"]) == (7, 3, 4)


def test_ids_that_a_store_could_not_find_are_renumbered(tmp_path: Path) -> None:
    records = [make_record(i, global_example_id=100 + i, example_id=i) for i in (1, 0)]
    write_pickle(tmp_path / "old" / "traces_batch_0001.pkl", records)
    convert_folder(tmp_path / "old", tmp_path / "new")
    loader = TraceBatchLoader(tmp_path / "new")
    assert [trace["global_example_id"] for trace in loader.iter_traces()] == [500, 501]
    found = loader.get_trace_by_global_id(501)
    assert found is not None and found["question_id"] == "q1"


def test_reduced_fields_are_computed_from_the_arrays(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0, 1)
    convert_folder(tmp_path / "old", tmp_path / "new", keep="compact")
    trace = TraceBatchLoader(tmp_path / "new").get_batch(0)[0]
    assert "hidden_states" not in trace and "attentions" not in trace
    attention = np.stack(make_record()["attentions"]).astype(np.float32)
    diagonal = np.log(np.diagonal(attention, axis1=2, axis2=3))
    np.testing.assert_allclose(trace["log_diagonal_all"], diagonal.mean(-1), rtol=2e-3)
    averaged = np.sort(attention.mean(1), axis=-1)[..., ::-1]
    np.testing.assert_allclose(trace["edge_weight"][..., :10], averaged, atol=1e-3)
    assert not trace["edge_weight"][..., 10:].any()
    received = attention.sum(2) / np.arange(10, 0, -1)
    laplacian = received - np.diagonal(attention, axis1=2, axis2=3)
    largest = np.sort(laplacian, axis=-1)[..., ::-1]
    np.testing.assert_allclose(trace["laplacian_top"][..., :10], largest, atol=1e-3)
    assert not trace["laplacian_top"][..., 10:].any()
    assert trace["nodes"].shape == (LAYERS, 10, 64)
    assert trace["lookback"].shape == (LAYERS, HEADS)
    # The first 8 components hold all the variance of ten states of dim 8.
    hidden = np.stack(make_record()["hidden_states"]).astype(np.float32)
    spread = ((hidden - hidden.mean(1, keepdims=True)) ** 2).sum((1, 2))
    kept = (trace["nodes"].astype(np.float32) ** 2).sum((1, 2))
    np.testing.assert_allclose(kept, spread, rtol=1e-2)
    assert read_manifest(tmp_path / "new").files.keys() == {"basis.arrow"}


def test_missing_fields_become_null(tmp_path: Path) -> None:
    record = make_record(tokens_decoded=None, generated_answer_clean=None, question_id=None)
    write_pickle(tmp_path / "old" / "batch_0000.pkl", [record])
    assert convert_folder(tmp_path / "old", tmp_path / "new").complete
    trace = TraceBatchLoader(tmp_path / "new").get_batch(0)[0]
    for name in ("question", "answer", "prompt_length", "tokens_decoded"):
        assert trace[name] is None
    for name in ("lookback", "answer_hidden"):  # the start of the answer is unknown
        assert trace[name] is None
    assert trace["question_id"] == "record_0"
    assert "without a question ID" in read_manifest(tmp_path / "new").notes[0]
    assert_same_arrays(trace, record)


def test_float32_is_stored_as_float16_and_nan_is_kept(tmp_path: Path) -> None:
    record = make_record(dtype=np.float32)
    record["hidden_states"][1][2, 3] = np.nan
    record["hidden_states"][1][2, 4] = 1e9
    write_pickle(tmp_path / "old" / "batch_0000.pkl", [record])
    assert convert_folder(tmp_path / "old", tmp_path / "new").complete
    trace = TraceBatchLoader(tmp_path / "new").get_batch(0)[0]
    expected = np.clip(np.stack(record["hidden_states"]), -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(trace["hidden_states"], expected)
    assert read_manifest(tmp_path / "new").notes == (
        "arrays that were wider than float16 are stored as float16",
    )


def test_malformed_records_are_skipped_and_listed(tmp_path: Path) -> None:
    wide = make_record(5, hidden_states=[np.zeros((10, 4), np.float16)] * LAYERS)
    records = [make_record(tokens=None), wide, make_record(2), make_record(3), "text"]
    write_pickle(tmp_path / "old" / "batch_0000.pkl", records)
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert not result.complete
    assert list(map(str, result.skipped)) == [
        "batch_0000.pkl, record 0 (q0): it has no tokens",
        "batch_0000.pkl, record 1 (q5): it has 3 layers, dim 4 and 2 heads, "
        "the store has 3, 8 and 2",
        "batch_0000.pkl, record 4 (record_4): it is a str, not a dict",
    ]
    assert [s["record"] for s in read_manifest(tmp_path / "new").skipped] == [0, 1, 4]
    loader = TraceBatchLoader(tmp_path / "new")
    assert [trace["global_example_id"] for trace in loader.iter_traces()] == [2, 3]
    # The next run finds nothing to do, and still lists what is missing.
    again = convert_folder(tmp_path / "old", tmp_path / "new")
    assert (again.already, again.skipped) == (1, result.skipped)


def test_unusable_files_are_listed_and_the_others_converted(tmp_path: Path) -> None:
    old, trap = tmp_path / "old", tmp_path / "trap"
    write_traces(old, 0).write_bytes(b"\x1f\x8bnot gzip")
    write_pickle(old / "x_traces_batch_0001.pkl", [RunsCommand(f'touch "{trap}"')])
    write_traces(old, 2)
    write_pickle(old / "x_traces_batch_0003.pkl", {"a": 1})
    write_pickle(old / "x_traces_batch_0004.pkl", [])
    write_pickle(old / "x_traces_batch_0005.pkl", [{}, {}])
    write_pickle(old / "all_traces_merged.pkl", [make_record()])
    result = convert_folder(old, tmp_path / "new")
    reasons = {skip.file: skip.reason for skip in result.skipped}
    assert "damaged or truncated" in reasons["trivia_qa_traces_batch_0000.pkl.gz"]
    assert not trap.exists()
    assert ".system'" in reasons["x_traces_batch_0001.pkl"]
    assert "contains a dict, not a list of traces" in reasons["x_traces_batch_0003.pkl"]
    assert "contains no records" in reasons["x_traces_batch_0004.pkl"]
    assert "none of its 2 records" in reasons["x_traces_batch_0005.pkl"]
    assert "batch number" in reasons["all_traces_merged.pkl"]
    assert (result.files, result.traces, len(reasons)) == (1, 2, 6)
    assert {s["file"] for s in read_manifest(tmp_path / "new").skipped} == reasons.keys()
    assert verify_store(tmp_path / "new") == []


def test_file_with_more_records_than_rows_per_shard_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.legacy.store._LEAST_ROWS_PER_SHARD", 1)
    write_traces(tmp_path / "old", 0, 1)
    write_traces(tmp_path / "old", 1, 2)
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert result.files == 1
    assert "has 2 records, but the store has at most 1 per shard" in result.skipped[0].reason


def test_manifest_names_its_source_files(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "old", 7)
    convert_folder(tmp_path / "old", tmp_path / "new")
    settings = read_manifest(tmp_path / "new").settings
    assert settings["keep"] == "full"
    assert settings["shape"]["dim"] == DIM
    (source,) = settings["sources"]
    assert (source["batch_number"], source["file"]) == (7, path.name)
    assert len(source["sha256"]) == 64


def test_file_names_with_spaces_and_accents_work(tmp_path: Path) -> None:
    old, new = tmp_path / "viejos años", tmp_path / "über alles"
    write_pickle(old / "más preguntas 0003.pkl", [make_record()])
    result = convert_folder(old, new)
    assert result.complete
    assert TraceBatchLoader(new).total_traces == 1
    assert "más preguntas 0003.pkl" in (new / "manifest.json").read_text(encoding="utf-8")


def test_each_subfolder_becomes_a_store(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_traces(old / "traces_data", 0)
    write_sequences(old / "preprocessed_data" / "lstm_solo" / "preprocessed_0000.pt")
    (old / "preprocessed_data" / "lstm_solo" / "preprocessed_0001.pt").write_bytes(b"x")
    seen: list[tuple[str, int, int]] = []
    result = convert_folder(
        old, new, on_file=lambda path, number, total: seen.append((path.name, number, total))
    )
    assert result.stores == (new / "preprocessed_data/sequences", new / "traces_data")
    assert [skip.file for skip in result.skipped] == [
        "preprocessed_data/lstm_solo/preprocessed_0001.pt"
    ]
    assert [(number, total) for _, number, total in seen] == [(1, 3), (2, 3), (3, 3)]


def test_legacy_files_become_a_store_at_a_url(tmp_path: Path, s3_url: str) -> None:
    write_traces(tmp_path / "old", 0)
    local = convert_folder(tmp_path / "old", tmp_path / "new")
    result = convert_folder(tmp_path / "old", as_path(s3_url))
    assert (result.traces, result.skipped) == (local.traces, local.skipped)
    assert verify_store(as_path(s3_url)) == []
    assert convert_folder(tmp_path / "old", as_path(s3_url)).already == 1


def test_traces_and_samples_in_one_folder_become_two_stores(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0)
    write_sequences(tmp_path / "old" / "preprocessed_0000.pt")
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert set(result.stores) == {tmp_path / "new/traces", tmp_path / "new/samples"}


def test_two_files_with_the_same_number_are_rejected(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0)
    write_traces(tmp_path / "old", 0, ending="pkl")
    with pytest.raises(InputError, match="are both batch 0: keep one"):
        convert_folder(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_folder_without_old_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"contain no legacy files.*\*_NNNN\.pkl\.gz"):
        convert_folder(tmp_path, tmp_path / "new")
    with pytest.raises(InputError, match="is not a folder"):
        convert_folder(tmp_path / "notes.txt", tmp_path / "new")


def test_merged_file_can_be_converted_back(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0)
    convert_folder(tmp_path / "old", tmp_path / "new")
    merged = extract_batch_subset([0], tmp_path / "back" / "merged.pkl.gz", tmp_path / "new")
    convert_folder(merged.parent, tmp_path / "again")
    traces = zip(
        TraceBatchLoader(tmp_path / "new").get_batch(0),
        TraceBatchLoader(tmp_path / "again").get_batch(0),
        strict=True,
    )
    for before, after in traces:
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])
