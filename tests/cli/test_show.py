"""clew show: what it prints, where the page is, and bad input."""

from pathlib import Path
from typing import Any

import pytest

from clew.storage.reading import read_json
from clew.storage.writing import replace_json
from tests.hallucination.answer_page.making import write_scores
from tests.hallucination.labels.text_stores import trace_row, write_text_store

pytestmark = pytest.mark.slow


def test_show_prints_answer_and_writes_page_to_current_folder(
    run: Any, compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("show", compact_store, "--id", 3)
    assert ended.code == 0, ended.err
    assert "answer 3 · q3" in ended.out and "accepted: Paris\n" in ended.out
    assert "label:    unknown" in ended.out and "probability" in ended.out
    assert "written to answer-3.html\n" in ended.out
    assert (tmp_path / "answer-3.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_scores_show_two_answers_side_by_side(
    run: Any, compact_store: Path, tmp_path: Path
) -> None:
    write_scores(compact_store, tmp_path / "scores.csv")
    page, png = tmp_path / "new" / "a.html", tmp_path / "new" / "a.PNG"
    options = ("--scores-file", tmp_path / "scores.csv", "--layer", 2)
    ended = run("show", compact_store, "--id", "q7", "--out", page, "--out", png, *options)
    assert ended.code == 0, ended.err
    assert "label:    correct, score 1.00" in ended.out
    assert "label:    hallucinated, score 0.00" in ended.out
    assert page.exists() and png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("real_pictures")
def test_page_is_replaced_but_other_files_are_not(
    run: Any, compact_store: Path, tmp_path: Path
) -> None:
    for name in ("a.html", "a.png"):
        out = tmp_path / name
        command = ("show", compact_store, "--id", 3, "--out", out)
        assert run(*command).code == 0 and run(*command).code == 0
        out.write_text("mine", encoding="utf-8")
        refused = run(*command)
        assert refused.code == 2 and 'was not written by "clew show"' in refused.err
        assert out.read_text(encoding="utf-8") == "mine"


def test_tokens_are_numbers_without_the_tokenizer(
    run: Any, store: Path, model_folder: Path, tmp_path: Path
) -> None:
    manifest = read_json(store / "manifest.json")
    manifest["settings"]["model"]["id"] = "/moved/away"
    replace_json(store / "manifest.json", manifest)
    command = ("show", store, "--id", 3, "--out", tmp_path / "a.html")
    ended = run(*command)
    assert ended.code == 0, ended.err
    assert 'note: the tokenizer of "/moved/away" is not on this machine' in ended.out
    assert "note:" not in run(*command, "--tokenizer", model_folder).out
    assert run(*command, "--tokenizer", tmp_path / "no").code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--id", "70"), "Its answers are numbered from 0 to 69; its question IDs look like 'q0'"),
        (("--id", "nobody"), '--id is "nobody": there is no such answer'),
        (("--id", "-1"), '--id is "-1": there is no such answer'),
        (("--id", "3", "--beside", "99"), '--beside is "99": there is no such answer'),
        (("--id", "3", "--beside", "q3"), '--beside is "q3": that is the same answer'),
        (("--id", "3", "--layer", "3"), "--layer is 3: the traces have layers 0 to 2"),
        (("--id", "3", "--layer", "-1"), "--layer is -1: the traces have layers"),
        (("--id", "3", "--out", "a.pdf"), "must end in .html or .png"),
        (("--id", "3", "--scores-file", "gone.csv"), "gone.csv"),
    ],
)
def test_wrong_input_exits_with_2(
    run: Any,
    compact_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("show", compact_store, *options)
    assert ended.code == 2 and message in ended.err
    assert not list(tmp_path.iterdir())


def test_samples_are_refused_and_their_traces_named(run: Any, store: Path, tmp_path: Path) -> None:
    write_scores(store, tmp_path / "scores.csv")
    made = run(
        "preprocess", store, "--scores-file", tmp_path / "scores.csv", "--out", tmp_path / "p"
    )
    assert made.code == 0, made.err
    for folder in (tmp_path / "p", tmp_path / "p" / "sequences", tmp_path):
        ended = run("show", folder, "--id", 3)
        assert ended.code == 2 and str(store) in ended.err


def test_traces_without_states_cannot_be_drawn(run: Any, tmp_path: Path) -> None:
    rows = [trace_row(number, "Rome", ["Rome"]) for number in range(2)]
    ended = run("show", write_text_store(tmp_path / "text", rows), "--id", 1)
    assert ended.code == 2 and "has nothing to draw" in ended.err


def test_question_with_several_answers_requires_a_number(run: Any, tmp_path: Path) -> None:
    rows = [trace_row(number, "Rome", ["Rome"], question_id="q") for number in range(3)]
    ended = run("show", write_text_store(tmp_path / "text", rows), "--id", "q")
    assert ended.code == 2 and "the question has 3 answers. Give the ID of one" in ended.err
