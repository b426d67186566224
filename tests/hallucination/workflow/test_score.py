"""Answers that exist already: from files and stores to a file of risks, whatever interrupts it."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clew
from clew.base.errors import InputError, SettingsMismatchError, StoppedError, StoreLockedError
from clew.base.progress import Event, ignore_event
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.data import Promise
from clew.hallucination.llm.prompts import Prompt
from tests.builders import tiny_loaded
from tests.events import notes
from tests.hallucination.conftest import FitDetector
from tests.hallucination.live.making import read_traces

pytestmark = pytest.mark.slow

ANSWER = "The capital of France"
RECORDS = [
    {"id": f"a{i}", "question": f"Who is {i}?", "answer": f"{ANSWER} {i}", "hallucinated": i % 2}
    for i in range(11)
]
Score = Callable[..., Any]


@pytest.fixture(scope="module")
def detector(fit: FitDetector) -> Detector:
    return fit("linear_probe")


@pytest.fixture
def score(live_model: LoadedModel, detector: Detector) -> Score:
    """Scores windows of 8 answers."""
    settings = {"model": live_model, "detector": detector, "rows": 1, "reporter": ignore_event}
    return lambda questions, **more: clew.score(questions=questions, **(settings | more))


def write_answers(folder: Path, ending: str) -> Path:
    path, table = folder / f"answers{ending}", pa.Table.from_pylist(RECORDS)
    if ending == ".jsonl":
        path.write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    elif ending == ".csv":
        lines = [",".join(map(str, record.values())) for record in RECORDS]
        path.write_text("\n".join([",".join(RECORDS[0]), *lines]))
    elif ending == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet", ".arrow"])
def test_every_format_of_answers_gives_the_same_risks(
    score: Score, tmp_path: Path, ending: str
) -> None:
    expected = score(RECORDS).table
    assert score(write_answers(tmp_path, ending)).table.equals(expected)
    assert expected["id"].to_pylist() == [record["id"] for record in RECORDS]
    assert expected["hallucinated"].to_pylist() == [bool(r["hallucinated"]) for r in RECORDS]


def test_answers_that_can_be_read_once_are_all_scored(score: Score) -> None:
    assert score(iter(RECORDS)).table.equals(score(RECORDS).table)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".arrow"])
def test_every_format_of_risks_has_the_same_rows(score: Score, tmp_path: Path, ending: str) -> None:
    result = score(RECORDS, out=tmp_path / f"risks{ending}")
    rows = result.table.to_pylist()
    assert [row["risk"] for row in rows] == [row["risk"] for row in score(RECORDS).rows]
    assert result.summary.labeled == 11 and result.summary.auroc is not None
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == [
        f"risks{ending}",
        f"risks{ending}.summary.json",
    ]


@pytest.mark.parametrize("left", [0, 40, 2000, 3500])
def test_a_run_killed_at_any_moment_ends_in_the_same_file(
    score: Score, tmp_path: Path, left: int
) -> None:
    whole = score(RECORDS, out=tmp_path / "whole.jsonl")
    out, journal = tmp_path / "risks.jsonl", tmp_path / "risks.jsonl.partial"
    calls = iter((False,))
    with pytest.raises(StoppedError):
        score(RECORDS, out=out, should_stop=lambda: next(calls, True))
    assert not out.exists()
    journal.write_bytes(journal.read_bytes()[:left])  # what a killed process may leave
    score(RECORDS, out=out)
    assert out.read_bytes() == whole.path.read_bytes()
    assert not journal.exists()


@pytest.mark.parametrize("ending", [".partial", ".summary.json"])
def test_a_file_of_somebody_else_beside_the_risks_is_not_replaced(
    score: Score, tmp_path: Path, ending: str
) -> None:
    out, mine = tmp_path / "risks.jsonl", tmp_path / f"risks.jsonl{ending}"
    mine.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="was not written by clew, so it is not replaced"):
            score(RECORDS, out=out, overwrite=overwrite)
    assert mine.read_text() == "mine"
    mine.unlink()
    score(RECORDS, out=out)


def test_answers_that_the_detector_was_fitted_on_give_a_warning(
    score: Score, live_store: Path
) -> None:
    events: list[Any] = []
    score(live_store, num_samples=1, reporter=events.append)
    assert any("was fitted on answers of" in getattr(event, "text", "") for event in events)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"question": None}, "give a text, or a list of texts"),
        ({"question": " "}, "the question is empty"),
        ({"question": "Who?", "temperature": -1.0}, "give 0"),
        ({"question": "Who?", "max_new_tokens": 0}, "it must be 1 or more"),
        ({"question": "Who?", "detector": "not/there"}, "there is no such file or folder"),
    ],
)
def test_asking_checks_its_settings_before_it_loads(settings: Any, problem: str) -> None:
    events: list[Any] = []
    with pytest.raises(InputError, match=problem):
        clew.ask(**settings, reporter=events.append)
    assert events == []


@pytest.mark.parametrize("ended_in", ["replace_json", "hash_file"])
def test_a_run_killed_while_it_finishes_is_resumed(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_in: str
) -> None:
    out = tmp_path / "risks.jsonl"
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(f"clew.hallucination.live.risk_file.{ended_in}", lambda *_: 1 / 0)
        score(RECORDS, out=out)
    left = (tmp_path / "risks.jsonl.partial").read_bytes()
    assert score(RECORDS, out=out).summary.answers == 11
    (tmp_path / "risks.jsonl.partial").write_bytes(left)  # killed before it was deleted
    assert score(RECORDS, out=out).summary.answers == 11
    assert not (tmp_path / "risks.jsonl.partial").exists()


def test_the_same_command_again_keeps_a_finished_file(score: Score, tmp_path: Path) -> None:
    out = tmp_path / "risks.jsonl"
    first = score(RECORDS, out=out)
    before = out.stat().st_mtime_ns
    again = score(RECORDS, out=out, model="no such model")  # it is not even loaded
    assert again.summary == first.summary
    assert out.stat().st_mtime_ns == before


def test_other_answers_are_refused_unless_overwritten(score: Score, tmp_path: Path) -> None:
    out = tmp_path / "risks.csv"
    score(RECORDS, out=out)
    with pytest.raises(SettingsMismatchError, match="answers.sha256"):
        score(RECORDS[:5], out=out)
    assert score(RECORDS[:5], out=out, overwrite=True).summary.answers == 5


def test_another_detector_of_the_same_name_is_not_mixed_in(
    score: Score, detector: Detector, fit: FitDetector, tmp_path: Path
) -> None:
    out = tmp_path / "risks.jsonl"
    score(RECORDS, out=out)
    trained_again = replace(detector, scorer=fit("linear_probe_middle").scorer)
    with pytest.raises(SettingsMismatchError, match="detector.weights"):
        score(RECORDS, out=out, detector=trained_again)
    prompt = Prompt(template="{question} In short:", chat=False)
    asked_otherwise = replace(detector, origin=replace(detector.kept, prompt=prompt))
    with pytest.raises(SettingsMismatchError, match=r"detector\.prompt"):
        score(RECORDS, out=out, detector=asked_otherwise)


def test_a_changed_or_foreign_file_is_not_replaced(score: Score, tmp_path: Path) -> None:
    out = tmp_path / "risks.jsonl"
    out.write_text("mine")
    with pytest.raises(SettingsMismatchError, match="nothing says what wrote it"):
        score(RECORDS, out=out)
    assert out.read_text() == "mine"


def test_two_processes_do_not_write_one_file(score: Score, tmp_path: Path) -> None:
    from clew.hallucination.live.risk_file import RiskFile

    with RiskFile(tmp_path / "risks.jsonl", {}), pytest.raises(StoreLockedError):
        score(RECORDS, out=tmp_path / "risks.jsonl")


def test_a_trace_store_is_scored_with_its_own_tokens(score: Score, live_store: Path) -> None:
    result, traces = score(live_store), read_traces(live_store)
    rows = {row["id"]: row for row in result.rows}
    for trace in traces.values():
        row = rows[trace["question_id"]]
        assert row["answer_tokens"] == len(trace["tokens"]) - trace["prompt_length"]
        if trace["stop_reason"] == "length":
            assert row["state"] == "unavailable" and "cut off" in row["reason"]
    named = [row["id"] for row in result.rows if row["retokenized"]]
    assert result.summary.retokenized_count == len(named)
    assert result.summary.retokenized == named[:20]


def test_unusable_records_keep_their_place(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    records = ({"question": "q", "answer": answer} for answer in ("a b c", ""))
    path.write_text("\nnot JSON\n".join(map(json.dumps, records)))
    result = score(path)
    rows = result.rows
    assert [*result.summary.reasons.values()] == [1, 1]
    assert not any("line 2" in reason for reason in result.summary.reasons)
    assert [row["state"] for row in rows[1:]] == ["unavailable", "unavailable"]
    assert "line 2: it is not JSON" in rows[1]["reason"]
    assert rows[2]["reason"] == "the answer is empty"
    assert [row["id"] for row in rows] == ["answers_0", "answers_1", "answers_2"]


def test_the_context_changes_the_prompt(score: Score) -> None:
    record = {"question": "Who?", "answer": "The capital of France"}
    plain, with_context = score([record, {**record, "context": "Lyon is a city."}]).rows
    assert plain["distance"] != with_context["distance"]


def test_a_detector_of_another_model_is_refused(score: Score) -> None:
    with pytest.raises(InputError, match="another model"):
        score(RECORDS, model=tiny_loaded(seed=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out": "risks.txt"}, "its format is unknown"),
        ({"num_samples": 0}, "1 or more"),
        ({"rows": 0}, "1 or more"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    score: Score, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        score(RECORDS, **settings)


def test_token_risks_require_a_token_probe(score: Score, detector: Detector) -> None:
    with pytest.raises(InputError, match="has no token probe"):
        score(RECORDS, tokens=True, detector=replace(detector, tokens=None))


def test_every_token_comes_with_its_risk(score: Score, fit: FitDetector, tmp_path: Path) -> None:
    events: list[Event] = []
    settings = {"detector": fit("token_probe"), "tokens": True, "num_samples": 2}
    result = score(RECORDS, out=tmp_path / "risks.arrow", reporter=events.append, **settings)
    assert any("does not point at the error" in note for note in notes(events))
    for row in result.table.to_pylist():
        assert len(row["tokens"]) == row["answer_tokens"]
        assert "".join(token["token"] for token in row["tokens"]).strip() == row["answer"]
        assert all(0 <= token["risk"] <= 1 for token in row["tokens"])


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".arrow"])
def test_columns_of_the_file_are_kept_beside_the_risks(
    score: Score, tmp_path: Path, ending: str
) -> None:
    rows = [{"Q": "Who?", "A": ANSWER, "day": "Monday", "risk": n, "tags": [1]} for n in range(2)]
    mapping = {"question": "Q", "answer": "A"}
    result = score(rows, columns=mapping, keep_columns="all", out=tmp_path / f"risks{ending}")
    found = result.table.to_pylist()
    assert [row["day"] for row in found] == ["Monday"] * 2
    assert [str(row["risk (file)"]) for row in found] == ["0", "1"]
    assert [row["tags"] for row in found] == ["[1]"] * 2
    assert all(row["question"] == "Who?" for row in found)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".arrow"])
def test_withheld_answers_are_not_in_the_file(
    score: Score, detector: Detector, tmp_path: Path, ending: str
) -> None:
    strict = replace(detector, threshold=0.0)
    out = tmp_path / f"risks{ending}"
    policy = {"on_risk": "replace", "replacement": "withheld"}
    result = score(RECORDS, detector=strict, out=out, **policy)
    assert set(result.table["answer"].to_pylist()) == {"withheld"}
    written = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]
    assert not any(ANSWER.encode() in content for content in written)
    with pytest.raises(SettingsMismatchError, match="on_risk"):
        score(RECORDS, detector=strict, out=out)
    rows = score(RECORDS, detector=strict, on_risk="withhold").rows
    assert {row["answer"] for row in rows} == {None} and all(row["question"] for row in rows)


def test_promise_is_printed_only_for_answers_like_the_labeled_ones(
    score: Score, detector: Detector
) -> None:
    assert detector.calibration is not None
    lax = replace(detector, threshold=1.0, distance=None)
    for shown, promised in ((100, True), (5, False)):
        promise = Promise(
            max_wrong_shown=0.1,
            confidence=0.95,
            threshold=1.0,
            calibration=asdict(detector.calibration),
            answers=100,
            not_familiar=100 - shown,
            unchecked=0,
            shown=shown,
            wrong_shown=0,
            share_shown=shown / 100,
            share_interval=(0.0, 1.0),
        )
        kept = replace(lax.kept, calibrated={"promise": promise.to_dict()})
        result = score(RECORDS * 6, detector=replace(lax, origin=kept))
        assert (result.promise is not None) == promised
        assert (result.no_promise is not None) != promised


SOURCED = [
    {"id": f"g{i}", "source": f"Item {i} can be returned.", "answer": f"Return item {i + i % 2}."}
    for i in range(9)
]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".arrow"])
def test_a_reader_finds_spans_that_the_source_of_each_answer_does_not_support(
    reader_folder: Path, tmp_path: Path, ending: str
) -> None:
    without = {"id": "g0", "question": "Which one?", "answer": "Item 0."}
    rows = [{**SOURCED[0], "label": "correct"}, *SOURCED[1:], without]
    settings = {"questions": rows, "detector": reader_folder, "tokens": True, "rows": 1}
    table = clew.score(**settings, out=tmp_path / f"risks{ending}").table
    again = clew.score(**settings, out=tmp_path / f"risks{ending}").table
    assert table.equals(again) and table["id"].to_pylist()[-1] == "g0#2"
    *checked, last = clew.score(**settings).rows
    assert last["state"] == "unavailable" and "no source" in last["reason"]
    assert last["risk"] is None and last["spans"] == []
    for row in checked:
        assert 0 <= row["risk"] <= 1 and row["method"] == "mine"
        for span in row["spans"]:
            assert row["answer"][span["start"] : span["end"]] == span["text"]
    spans = [json.loads(one) if ending == ".csv" else one for one in table["spans"].to_pylist()]
    assert [len(one) for one in spans] == [len(row["spans"]) for row in (*checked, last)]


def test_answers_without_sources_are_refused_by_a_reader(reader_folder: Path) -> None:
    with pytest.raises(InputError, match="no column with sources.*name it source or context"):
        clew.score(questions=RECORDS, detector=reader_folder)


def test_a_precision_is_refused_for_a_reader(reader_folder: Path) -> None:
    with pytest.raises(InputError, match='dtype is "float16": a reader is loaded on one device'):
        clew.score(questions=SOURCED, detector=reader_folder, dtype="float16")


def test_what_a_reader_withholds_leaves_no_spans(reader_folder: Path) -> None:
    found = clew.score(questions=SOURCED, detector=reader_folder, on_risk="withhold")
    assert all(r["spans"] == [] for r in found.rows if r["answer"] is None)
    assert any(row["answer"] is None for row in found.rows)
