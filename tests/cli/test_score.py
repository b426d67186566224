"""What `clew score` prints, and as JSON; and how `clew ask` ends with the same detector."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.detectors.detector_folder import save_detector
from clew.hallucination.live.risk_file import summarize
from tests.hallucination.conftest import fit, live_model, live_samples, live_store

pytestmark = pytest.mark.slow

__all__ = ["fit", "live_model", "live_samples", "live_store"]


@pytest.fixture(scope="module")
def detector(fit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_detector(fit("perplexity"), tmp_path_factory.mktemp("cli") / "detector")


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.csv"
    path.write_text("id,question,response,answer\n1,Who?,Paris\x1b[31m,Paris\n2,Who?,Oslo,Paris\n")
    return path


def test_a_table_with_the_totals_is_printed(run: Any, detector: Path, answers: Path) -> None:
    ended = run("score", "--questions", answers, "--detector", detector, "--device", "cpu")
    assert ended.code == 0, ended.err
    assert "2 answers, detector perplexity: 2 checked" in ended.out
    headings = ["risk", "verdict", "state", "question", "answer"]
    assert headings in [line.split() for line in ended.out.splitlines()]
    assert "Oslo" in ended.out and "\x1b[31m" not in ended.out
    assert "on 2 labeled answers" in ended.out


def test_the_most_frequent_reasons_for_unavailable_answers_are_printed(
    run: Any, detector: Path, tmp_path: Path
) -> None:
    path, ask = tmp_path / "answers.jsonl", '{"question": "Who?", "answer": '
    rows = ["[1]}", "[2]}", '""}', "true}", "{}}"]
    path.write_text("".join(f"{ask}{row}\n" for row in rows) + '{"answer": "Oslo"}\n')
    ended = run("score", "--questions", path, "--detector", detector, "--device", "cpu")
    assert ended.code == 0, ended.err
    first = "6 unavailable\n2 unavailable: its answer is a list, not text\n"
    assert first in ended.out and ended.out.count(" unavailable: ") == 3
    assert "\nand 2 more\n" in ended.out


def test_reasons_that_differ_by_a_number_are_counted_together() -> None:
    row = {"state": "unavailable", "risk": None, "retokenized": False}
    reasons = [f"the answer has {count} tokens" for count in ("4,131", "9,000", "no")]
    found = summarize({**row, "reason": reason} for reason in reasons)
    assert found.reasons == {reasons[0]: 2, reasons[2]: 1}


def test_an_empty_file_is_refused_before_anything_is_loaded(
    run: Any, detector: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").touch()
    ended = run("score", "--questions", tmp_path / "empty.jsonl", "--detector", detector)
    assert ended.code == 2 and "empty.jsonl is empty: give at least one answer" in ended.err
    assert "loading" not in ended.err and "empty.jsonl: \n" not in ended.err


def test_json_is_the_summary_and_the_rows_are_in_the_file(
    run: Any, detector: Path, answers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "risks.jsonl"
    command = ("score", "--questions", answers, "--detector", detector, "--device", "cpu")
    ended = run(*command, "--out", out, "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["answers"], summary["labeled"], summary["path"]) == (2, 2, str(out))
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["1", "2"]
    assert json.loads(run(*command, "--out", out, "--json").out) == summary


def test_a_wrong_ending_is_named_with_its_flag(run: Any, detector: Path, answers: Path) -> None:
    ended = run("score", "--questions", answers, "--detector", detector, "--out", "risks.txt")
    assert ended.code == 2
    assert "--out" in ended.err and ".jsonl, .csv, .arrow" in ended.err


def test_asking_fails_if_no_question_could_be_answered(run: Any, detector: Path) -> None:
    ended = run("ask", "word " * 5_000, "--detector", detector, "--device", "cpu")
    assert ended.code != 0
    assert "answer:   (none)" in ended.out
    assert "none of 1 question could be answered" in ended.err
