"""A capture writes one trace per question, identical after any interruption.

It lists everything it excludes.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from clew import TraceBatchLoader
from clew.base.errors import (
    ClewError,
    InputError,
    SettingsMismatchError,
    StoppedError,
    StoreError,
)
from clew.base.progress import Event, StepStarted, WorkAdvanced, WorkEnded, WorkUnderway
from clew.hallucination.capture import ExtractConfig, LoadedModel, job
from clew.hallucination.capture.store import TraceStore
from clew.hallucination.traces.compact import STATES
from clew.hallucination.traces.schema import BY_HEAD, DIAGONALS
from clew.storage.lock import Part
from clew.storage.manifest import read_manifest
from clew.storage.repair import ensure_manifest, repair_store
from clew.storage.verify import verify_store
from tests.builders import ask, tiny_loaded, tiny_model, tiny_tokenizer, write_lines
from tests.events import notes, pick
from tests.hallucination.llm.reference import pass_plainly
from tests.stores import after_one_batch, assert_nearly_same_store, assert_same_store, read_columns

FLOAT16_STEP = 2e-3


def test_store_has_one_trace_per_question_in_order_with_its_text(
    compact_store: Path, questions_file: Path
) -> None:
    asked = [json.loads(line) for line in questions_file.read_text().splitlines()]
    traces = list(TraceBatchLoader(compact_store).iter_traces())
    assert [t["question"] for t in traces] == [q["question"] for q in asked]
    assert [t["question_id"] for t in traces] == [q["id"] for q in asked]
    assert [t["accepted_answers"] for t in traces] == [q["answer"] for q in asked]
    places = [(t["batch_number"], t["example_id"]) for t in traces]
    assert places == [divmod(i, 20) for i in range(70)]


@pytest.mark.slow
def test_another_chat_template_is_refused_but_an_unrecorded_one_is_not(tmp_path: Path) -> None:
    def open_store(name: str, **more: str) -> None:
        prompt = {"template": "{question}", "chat": True, **more}
        store = TraceStore(tmp_path / name, rows_per_shard=8, part=Part())
        store.open(settings={"prompt": prompt}, rows=4, skipped=())

    open_store("old")
    open_store("old", chat_template_sha256="ab")
    open_store("new", chat_template_sha256="ab")
    with pytest.raises(SettingsMismatchError, match="chat_template_sha256: was 'ab', is now 'cd'"):
        open_store("new", chat_template_sha256="cd")


@pytest.mark.slow
@pytest.mark.parametrize("draws", [0, 2])
def test_every_step_and_every_batch_moves_a_bar(capture: Any, draws: int) -> None:
    events: list[Event] = []
    capture(num_samples=16, draws=draws, reporter=events.append)
    names = [step.name for step in pick(events, StepStarted)]
    assert [name.split()[0] for name in names] == ["fitting", "comparing", "timing"]
    for step in (step for step in pick(events, StepStarted) if step.parts):
        place = events.index(step)
        ended = next(at for at in range(place, len(events)) if isinstance(events[at], WorkEnded))
        counted = sum(one.count for one in pick(events[place:ended], WorkAdvanced))
        assert 0.4 * step.parts <= counted <= step.parts
    batches = pick(events, WorkUnderway)
    assert {one.count for one in batches} == {8}
    shares = [one.share for one in batches]
    assert shares.count(1.0) == 2 and len(shares) > 8
    first = shares[: shares.index(1.0) + 1]
    assert first == sorted(first)


def test_tokens_are_the_prompt_followed_by_the_answer(compact_store: Path) -> None:
    tokenizer = tiny_tokenizer()
    for trace in TraceBatchLoader(compact_store).iter_traces():
        prompt, answer = np.split(trace["tokens"], [trace["prompt_length"]])
        asked = f"Answer the question concisely. Q: {trace['question']} A:"
        assert tokenizer.decode(prompt.tolist()) == asked
        assert tokenizer.decode(answer.tolist()).strip() == trace["answer"]
        assert len(answer) == len(trace["token_logprobs"]) <= 6


def test_store_is_intact_and_records_its_settings(compact_store: Path, model_folder: Path) -> None:
    assert verify_store(compact_store) == []
    manifest = read_manifest(compact_store)
    assert manifest.settings["model"]["id"] == str(model_folder)
    assert manifest.settings["generation"]["max_new_tokens"] == 6
    assert (manifest.rows, manifest.planned_rows, manifest.skipped) == (70, 70, ())


@pytest.mark.slow
def test_finish_reasons_of_answers_are_recorded(capture: Any, tmp_path: Path) -> None:
    """This random model either repeats itself or continues until it is stopped."""
    capture(max_new_tokens=24)
    reasons = {t["stop_reason"] for t in TraceBatchLoader(tmp_path / "new").iter_traces()}
    assert (
        {"repetition", "length"} <= reasons <= {"repetition", "length", "end", "sentence", "line"}
    )


def test_second_run_has_nothing_to_do(capture: Any, store: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in store.glob("batch_*")}
    result = capture("store")
    assert (result.finished, result.traces_made, result.traces_stored) == (True, 0, 70)
    assert {path.name: path.stat().st_mtime_ns for path in store.glob("batch_*")} == before


def test_run_asked_to_stop_before_its_first_batch_captures_nothing(
    capture: Any, tmp_path: Path
) -> None:
    result = capture(should_stop=lambda: True, num_samples=4)
    assert (result.finished, result.traces_made) == (False, 0)
    with pytest.raises(StoppedError, match="0 new traces saved"):
        capture("never", model=None, should_stop=lambda: True, num_samples=4)
    assert not (tmp_path / "never" / "manifest.json").exists()


def test_store_with_more_traces_than_requested_says_so(capture: Any, store: Path) -> None:
    events: list[Event] = []
    assert capture(store.name, num_samples=30, reporter=events.append).traces_stored == 70
    assert (
        "the store already has 70 traces, more than the 30 requested; it keeps them all"
        in notes(events)
    )


@pytest.mark.slow
def test_stopped_run_resumes_to_an_identical_store(
    capture: Any, compact_store: Path, tmp_path: Path
) -> None:
    made = []
    while sum(made) < 70:
        made.append(capture(should_stop=after_one_batch()).traces_made)
    assert max(made) <= 8
    assert capture().traces_made == 0
    assert_same_store(tmp_path / "new", compact_store)
    assert verify_store(tmp_path / "new") == []


@pytest.mark.slow
def test_three_parts_write_the_same_store_as_one_process(
    capture: Any, compact_store: Path, tmp_path: Path
) -> None:
    made = [capture(part=Part(index=i, count=3)).traces_made for i in (2, 3, 1)]
    assert made == [20, 20, 30]
    assert_same_store(tmp_path / "new", compact_store)


@pytest.mark.slow
def test_a_store_can_grow(capture: Any, compact_store: Path, tmp_path: Path) -> None:
    assert capture(num_samples=30).traces_stored == 30
    assert capture(num_samples=70).traces_made == 40
    assert_nearly_same_store(tmp_path / "new", compact_store)
    assert verify_store(tmp_path / "new") == []


def test_fewer_questions_than_before_leave_a_store_unchanged(capture: Any, store: Path) -> None:
    result = capture("store", num_samples=30)
    assert (result.finished, result.traces_made) == (True, 0)
    assert read_manifest(store).planned_rows == 70


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "before", "now"),
    [
        ({"max_new_tokens": 9}, "generation.max_new_tokens: was 6", "is now 9"),
        ({"shard_size": 30}, "shard_size: was 20", "is now 30"),
        ({"keep": "full"}, "keep: was 'compact'", "is now 'full'"),
        ({"prompt": "Q {question}"}, "prompt.template: was 'Answer the", "is now 'Q {question}'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_settings_are_rejected_with_both_values(
    capture: Any, store: Path, change: dict[str, Any], before: str, now: str
) -> None:
    files = {path: path.read_bytes() for path in store.glob("*.*")}
    with pytest.raises(SettingsMismatchError) as refused:
        capture("store", **change)
    assert before in str(refused.value)
    assert now in str(refused.value)
    assert {path: path.read_bytes() for path in store.glob("*.*")} == files


@pytest.mark.slow
def test_other_weights_are_rejected(capture: Any, store: Path) -> None:
    with pytest.raises(SettingsMismatchError, match="model.fingerprint"):
        capture(store.name, tiny_loaded(seed=1))


def test_other_questions_are_rejected(capture: Any, store: Path, questions_file: Path) -> None:
    changed = store.parent / questions_file.name
    changed.write_text(questions_file.read_text().replace("Paris", "Lyon"))
    with pytest.raises(SettingsMismatchError, match="questions.sha256"):
        capture(store.name, questions=changed)


@pytest.mark.slow
def test_store_started_by_earlier_version_resumes_with_its_columns(
    capture: Any, compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, later = job._describe_settings, ("answer_hidden", "eigenvalues", "packed")

    def describe_as_before(*given: Any) -> dict[str, Any]:
        return {k: v for k, v in describe(*given).items() if k not in later}

    with monkeypatch.context() as older:
        older.setattr(job, "_describe_settings", describe_as_before)
        assert capture(should_stop=after_one_batch()).traces_made == 8
    events: list[Event] = []
    assert capture(reporter=events.append).traces_made == 62
    assert any(
        "older version of clew without answer_hidden and continues" in line
        for line in notes(events)
    )
    found, now = read_columns(tmp_path / "new"), read_columns(compact_store)
    assert found.keys() - now.keys() == {*DIAGONALS}
    assert now.keys() - found.keys() == {"answer_hidden", *BY_HEAD}
    assert all(found[name] == now[name] for name in found.keys() & now.keys())
    trace = TraceBatchLoader(tmp_path / "new").get_batch(0)[0]
    with pytest.raises(KeyError, match='this trace has no field "answer_hidden"'):
        trace["answer_hidden"]


def test_folder_with_other_files_is_rejected(capture: Any, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.docx").touch()
    with pytest.raises(
        StoreError, match=r"neither empty nor a clew store \(it contains thesis.docx"
    ):
        capture()


def test_run_killed_while_writing_its_first_manifest_can_be_repeated(
    capture: Any, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "manifest.json.4711.tmp").write_text('{"kind": "tra')
    assert capture(num_samples=5).finished


@pytest.mark.slow
def test_rebuilt_manifest_knows_how_far_the_store_has_grown(capture: Any, tmp_path: Path) -> None:
    capture(num_samples=20)
    capture(num_samples=25)
    lose_manifest(tmp_path / "new")
    assert read_manifest(tmp_path / "new").planned_rows == 25


@pytest.mark.slow
def test_excluded_questions_are_listed_again_after_a_lost_manifest(
    capture: Any, tmp_path: Path
) -> None:
    questions = write_lines(tmp_path / "odd.jsonl", [*ask(3), "not json"])
    capture(questions=questions)
    before = read_manifest(tmp_path / "new")
    lose_manifest(tmp_path / "new")
    assert capture(questions=questions).traces_made == 0
    assert read_manifest(tmp_path / "new").skipped == before.skipped != ()


def test_empty_answers_are_kept_and_listed(capture: Any, tmp_path: Path) -> None:
    capture(model=always_silent(), num_samples=5)
    traces = list(TraceBatchLoader(tmp_path / "new").iter_traces())
    assert [(t["answer"], t["stop_reason"]) for t in traces] == [("", "end")] * 5
    assert all(len(t["tokens"]) == t["prompt_length"] for t in traces)
    assert all(np.isfinite(t["last_hidden"]).all() for t in traces)
    assert not any(t["answer_hidden"].any() for t in traces)
    [note] = read_manifest(tmp_path / "new").notes
    assert note.startswith("shard 0: 5 empty answers: ")
    assert set(note.split(": ")[2].split(", ")) == {"q0", "q1", "q2", "q3", "q4"}


@pytest.mark.slow
def test_empty_answers_of_a_full_store_are_kept(capture: Any, tmp_path: Path) -> None:
    capture(model=always_silent(), num_samples=3, keep="full")
    for trace in TraceBatchLoader(tmp_path / "new").iter_traces():
        assert trace["attentions"].shape[-1] == trace["prompt_length"]


@pytest.mark.slow
def test_unusable_lines_are_excluded_and_listed(capture: Any, tmp_path: Path) -> None:
    good = ask(3)
    lines = [good[0], '{"id": "torn", "quest', good[1], {"id": "bare", "question": ""}, good[2]]
    events: list[Event] = []
    result = capture(questions=write_lines(tmp_path / "odd.jsonl", lines), reporter=events.append)
    assert (result.traces_stored, result.skipped) == (3, 2)
    skipped = read_manifest(tmp_path / "new").skipped
    assert [entry["where"] for entry in skipped] == ["line 2", "line 4 (id bare)"]
    assert sum(line.startswith("excluded: line ") for line in notes(events)) == 2
    ids = [t["global_example_id"] for t in TraceBatchLoader(tmp_path / "new").iter_traces()]
    assert ids == [0, 1, 2]


@pytest.mark.slow
def test_question_too_long_for_the_model_is_excluded_and_listed(
    capture: Any, tmp_path: Path
) -> None:
    lines = ask(4, q2="who " * 300)
    result = capture(questions=write_lines(tmp_path / "long.jsonl", lines))
    assert (result.traces_stored, result.skipped) == (3, 1)
    [entry] = read_manifest(tmp_path / "new").skipped
    assert entry["where"] == "question q2"
    assert entry["reason"].endswith(
        "exceed the model's limit of 256: shorten the question, or lower `max_new_tokens`"
    )


def test_run_is_rejected_if_all_questions_are_too_long(capture: Any, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "long.jsonl", [{"id": "q0", "question": "who " * 300}])
    with pytest.raises(InputError, match="none of the 1 questions .* can be captured"):
        capture(questions=lines)


@pytest.mark.slow
def test_a_question_of_2000_tokens_is_captured(capture: Any, tmp_path: Path) -> None:
    roomy = tiny_loaded(context=4096)
    lines = write_lines(tmp_path / "long.jsonl", ask(4, q2="who " * 2000))
    assert capture(model=roomy, questions=lines, max_new_tokens=3).skipped == 0
    trace = TraceBatchLoader(tmp_path / "new").get_trace_by_global_id(2)
    assert trace is not None
    assert len(trace["tokens"]) > 2000
    with torch.no_grad():
        states = roomy.model(
            torch.from_numpy(trace["tokens"][None].astype(np.int64)), output_hidden_states=True
        ).hidden_states
    last = np.stack([state[0, -1].numpy() for state in states[1:]])
    assert np.allclose(trace["last_hidden"], last, atol=0.02 + rounding(last))
    assert trace["nodes"].shape[1] == len(trace["tokens"])


def test_full_traces_equal_plain_passes(full_store: Path, loaded: LoadedModel) -> None:
    for trace in TraceBatchLoader(full_store).iter_traces():
        plain = pass_plainly(loaded.model, trace["tokens"].tolist())
        hidden, attention = trace["hidden_states"], trace["attentions"]
        assert np.allclose(hidden, plain.hidden, rtol=FLOAT16_STEP, atol=FLOAT16_STEP)
        assert np.allclose(attention, plain.attention, rtol=FLOAT16_STEP, atol=FLOAT16_STEP)


@pytest.mark.slow
def test_full_stores_contain_everything_that_compact_ones_do(
    full_store: Path, capture: Any, tmp_path: Path
) -> None:
    capture(num_samples=12, shard_size=5)
    full, compact = read_columns(full_store), read_columns(tmp_path / "new")
    assert full.keys() - compact.keys() == {"hidden_states", "attentions"}
    assert {name: full[name] for name in compact} == compact


@pytest.mark.slow
def test_states_in_8_bits_are_read_as_the_same_ones_rounded(
    full_store: Path, capture: Any, tmp_path: Path
) -> None:
    capture(num_samples=12, shard_size=5, state_bits=8)
    capture("exact", num_samples=12, shard_size=5)
    exact, rounded = read_columns(tmp_path / "exact"), read_columns(tmp_path / "new")
    assert all(exact[name] == rounded[name] for name in exact.keys() - STATES)
    assert_rounded(tmp_path / "new", full_store, STATES)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [({"state_bits": 4}, "choose 8 or 16"), ({"state_bits": 8, "keep": "full"}, "as it is")],
)
def test_state_bits_that_cannot_be_stored_are_refused(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ExtractConfig(**wrong)


def assert_rounded(packed: Path, exact: Path, names: Iterable[str]) -> None:
    """The states of one store are those of the other, in 8 bits."""
    traces = [TraceBatchLoader(store).iter_traces() for store in (packed, exact)]
    for found, expected in zip(*traces, strict=True):
        assert all(found[name].dtype == np.float16 for name in names)
        for name in names:
            assert np.allclose(found[name], expected[name], atol=rounding(expected[name]))


def rounding(states: np.ndarray) -> float:
    """The largest error of 8 bits."""
    return float(np.abs(states).max()) / 200


@pytest.mark.slow
def test_traces_with_nan_are_kept_and_listed(capture: Any, tmp_path: Path) -> None:
    """The embedding of "Z" is NaN, and only one question contains a Z."""
    model, tokenizer = tiny_loaded()
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.encode("Z")] = float("nan")
    lines = ask(40, q30="who is Z?")
    capture(model=LoadedModel(model, tokenizer), questions=write_lines(tmp_path / "z.jsonl", lines))
    notes = read_manifest(tmp_path / "new").notes
    assert "shard 1: NaN or infinity in 1 trace: q30" in notes


@pytest.mark.slow
def test_model_that_only_returns_nan_is_rejected(capture: Any) -> None:
    model, tokenizer = tiny_loaded()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
        model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ClewError, match="NaN|not finite|cannot be captured accurately"):
        capture(model=LoadedModel(model, tokenizer), num_samples=5)


def test_pyarrow_opens_the_shards(compact_store: Path) -> None:
    path = str(compact_store / "batch_0003.arrow")
    frame = pa.ipc.open_file(pa.memory_map(path)).read_all().to_pandas()
    assert sorted(frame["question_id"]) == sorted(f"q{i}" for i in range(60, 70))
    assert len(frame["last_hidden"][0]) == 3


def test_polars_opens_the_shards(compact_store: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_ipc(compact_store / "batch_0003.arrow")
    assert frame["global_example_id"].sort().to_list() == list(range(60, 70))


def test_duckdb_queries_texts_and_tokens(compact_store: Path) -> None:
    """It does not support float16, so those columns are not selected."""
    duckdb = pytest.importorskip("duckdb")
    table = pa.ipc.open_file(pa.memory_map(str(compact_store / "batch_0003.arrow"))).read_all()
    shard = table.select(["global_example_id", "answer", "tokens"])  # noqa: F841 - in the query
    found = duckdb.sql("select count(*), min(global_example_id), min(len(tokens)) > 0 from shard")
    assert found.fetchall() == [(10, 60, True)]


@pytest.mark.slow
def test_hugging_face_datasets_opens_the_shards(compact_store: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    opened = datasets.load_dataset(
        "arrow", data_files=str(compact_store / "batch_0003.arrow"), cache_dir=tmp_path
    )["train"]
    assert sorted(opened["global_example_id"]) == list(range(60, 70))


def test_store_consists_only_of_arrow_and_json_files(full_store: Path) -> None:
    for path in full_store.iterdir():
        if path.suffix == ".arrow":
            assert path.read_bytes().startswith(b"ARROW1")
        elif not path.name.startswith("."):
            json.loads(path.read_bytes())


@pytest.mark.parametrize("content", ["", "\n\n", '{"id": "q0"}\n'])
def test_file_without_questions_is_rejected(capture: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "none.jsonl").write_text(content)
    with pytest.raises(InputError, match="none.jsonl"):
        capture(questions=tmp_path / "none.jsonl")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "wrong", [{"shard_size": 0}, {"num_samples": 0}, {"max_new_tokens": -1}, {"node_dim": 0}]
)
def test_invalid_numbers_are_rejected(wrong: dict[str, int]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(InputError, match=f"^{name} is {value}: it must be 1 or more"):
        ExtractConfig(**wrong)
    assert name in {field.name for field in dataclasses.fields(ExtractConfig)}


def lose_manifest(store: Path) -> None:
    """What `clew verify --repair` does if the manifest is missing."""
    (store / "manifest.json").unlink()
    assert ensure_manifest(store)
    repair_store(store, verify_store(store))


def always_silent() -> LoadedModel:
    """All logits equal: the first token of the vocabulary wins, and that is the end token."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return LoadedModel(model, tiny_tokenizer())
