"""clew check: what the sources do not support is marked, or a sentence says why nothing is read."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.hallucination.grounded.passages import MOST_SOURCE_CHARACTERS
from tests.hallucination.grounded.test_reader import make_reader
from tests.pages.driving import Browser, needs_chromium

SOURCE = "Items can be returned within 30 days of delivery. Refunds take a week."
ANSWER = "You can return items 🎁 within 60 days. Refunds take an hour."
HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">\x1b[2J\u202e'


@pytest.fixture
def check(run: Any, reader_folder: Path) -> Any:
    return lambda *words: run("check", "--reader", reader_folder, *words)


def test_spans_are_marked_with_their_risk_and_the_nearest_passage(check: Any) -> None:
    ended = check("--source", SOURCE, "--answer", ANSWER)
    first, *rest = ended.out.splitlines()
    found = re.fullmatch(r"(.*) {8}(?:high|low) risk \d\.\d\d {3}(.*)", first)
    assert found is not None
    marked, spans = found.groups()
    assert (ended.code, re.sub(r"[\[\]]", "", marked)) == (0, ANSWER)
    assert spans.removesuffix("s") == f"{len(rest)} unsupported span" and marked.count("[") == len(
        rest
    )
    assert all(re.search(r" risk \d\.\d\d   nearest in source: \"", line) for line in rest)


def test_json_has_the_places_in_the_answer_and_in_the_sources(check: Any, tmp_path: Path) -> None:
    file = tmp_path / "handbook.txt"
    file.write_text(SOURCE, encoding="utf-8")
    ended = check("--context", "Nothing of it.", "--source", file, "--answer", ANSWER, "--json")
    found, sources = json.loads(ended.out), ["Nothing of it.", SOURCE]
    assert found["sources"] == ["source 1", str(file)] and found["spans"]
    for one in (*found["spans"], *found["sentences"]):
        assert found["answer"][one["start"] : one["end"]] == one["text"]
    for near in (span["nearest"] for span in found["spans"]):
        assert sources[near["source"]][near["start"] : near["end"]] == near["text"]


def test_claims_have_risks_of_their_own(check: Any) -> None:
    answer = "Items can be returned within 30 days, and refunds take a week; shipping is not paid."
    found = json.loads(check("--source", SOURCE, "--answer", answer, "--by", "claim", "--json").out)
    assert [one["text"] for one in found["claims"]] == [
        "Items can be returned within 30 days",
        "and refunds take a week",
        "shipping is not paid.",
    ]
    assert all(0 <= one["risk"] <= 1 for one in found["claims"])


def test_sentences_have_risks_of_their_own(check: Any) -> None:
    lines = check("--source", SOURCE, "--answer", ANSWER, "--by", "sentence").out.splitlines()
    sentences = [re.sub(r"[\[\]]", "", line[6:]) for line in lines[:2]]
    assert sentences == re.split(r"(?<=\.) ", ANSWER)
    risks = [float(line[:4]) for line in lines[:2]]
    assert lines[2].startswith(("high risk", "low risk")) and f"{max(risks):.2f}" in lines[2]


def test_the_page_offers_the_risks_of_sentences(check: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check("--source", SOURCE, "--answer", ANSWER, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert (
        '<input type="checkbox" id="by-unit">' in text and text.count("risk of the sentence") == 2
    )


def test_inspect_shows_the_card_of_a_reader(run: Any, reader_folder: Path) -> None:
    ended = run("inspect", reader_folder)
    assert ended.code == 0 and "calibration: slope 1.0" in ended.out
    built_in = run("inspect", "grounded").out
    assert re.search(r"^trained_on\.\S+: answers [\d]+", built_in, re.M) and "limits: " in built_in
    assert json.loads(run("inspect", "grounded", "--json").out)["threshold"] > 0


def test_the_answer_may_come_from_stdin(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{ANSWER}\n"))
    ended = check("--source", SOURCE, "--answer", "-", "--json")
    assert json.loads(ended.out)["answer"] == ANSWER


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--answer", "Yes."), "Missing option '--source'"),
        (("--source", " ", "--answer", "Yes."), "there is no source"),
        (("--source", "", "--answer", "Yes."), "there is no source"),
        (("--source", SOURCE, "--answer", " "), "the answer is empty"),
        (("--source", SOURCE, "--answer", ""), "the answer is empty"),
        (("--source", "https://a.org/b", "--answer", "Yes."), "clew loads no page"),
        (("--source", "hand.txt", "--answer", "Yes."), '--source is "hand.txt": there is no such'),
        (("--source", ".", "--answer", "Yes."), '--source is ".":'),
        (("--source", "-", "--answer", "-"), "stdin can be read once only"),
        (("--source", SOURCE, "--answer", "Yes.", "--reader", "none"), "there is no reader in"),
        (("--source", SOURCE, "--answer", "Yes.", "--html", "."), "--html is"),
    ],
)
def test_wrong_input_is_one_sentence_and_no_risk(
    run: Any, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Yes."))
    ended = run("check", *words)
    assert ended.code in (1, 2) and said in ended.err and "risk 0" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"word " * 2_000_000, f"at most {MOST_SOURCE_CHARACTERS:,} are read"),
        (b"\x00\x81\xff\x01" * 99, "the file is not text"),
        (b"%PDF-1.4 \x00\x01", "the file is not text"),
        (b"", "there is no source"),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    check: Any, tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "source.txt"
    file.write_bytes(content)
    ended = check("--source", file, "--answer", "Yes.")
    assert ended.code == 2 and said in ended.err and not ended.out


@pytest.mark.slow
def test_a_source_that_is_not_familiar_gets_no_verdict(
    run: Any, model_folder: Path, tmp_path: Path
) -> None:
    reader = make_reader(model_folder, surprise_limit=0.001)
    reader.adapter["surprise"] = torch.full((len(reader.tokenizer),), 6.0)
    reader.save(tmp_path / "reader")
    words = ("--reader", tmp_path / "reader", "--source", SOURCE, "--answer", ANSWER)
    ended = run("check", *words)
    assert ended.code == 0 and ended.out.startswith(f"{ANSWER}\nnot familiar: no verdict: ")
    assert "clew adapt grounded" in ended.out and " risk " not in ended.out
    found = json.loads(run("check", *words, "--json").out)
    assert (found["state"], found["risk"], found["spans"]) == ("out_of_distribution", None, [])


def test_bytes_are_not_a_list_of_sources(reader_folder: Path) -> None:
    with pytest.raises(clew.InputError, match=r"source is b'Yes.': give a text"):
        clew.check(source=b"Yes.", answer=ANSWER, reader=reader_folder)  # type: ignore[arg-type]


def test_a_number_of_threads_is_checked(reader_folder: Path) -> None:
    with pytest.raises(clew.InputError, match="threads is 0"):
        clew.check(source=SOURCE, answer=ANSWER, reader=reader_folder, threads=0)


def test_a_reader_cannot_be_asked(run: Any) -> None:
    ended = run("ask", "Who?", "--detector", "grounded")
    assert ended.code == 2 and '"clew check"' in ended.err


def test_in_python_a_text_is_never_the_name_of_a_file(reader_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("The secret.", encoding="utf-8")
    found = clew.check(source=str(file), answer=str(file), reader=reader_folder)
    assert found.answer == str(file) and found.sources == (str(file),)
    assert clew.check(source=[file], answer=file, reader=reader_folder).sources == ("The secret.",)


@pytest.mark.slow
@needs_chromium
def test_the_page_shows_hostile_texts_as_text(check: Any, tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "page.html"
    words = ("--answer", f"{ANSWER} {HOSTILE}", "--question", HOSTILE, "--html", page)
    ended = check("--source", f"{SOURCE} {HOSTILE}", *words)
    assert ended.code == 0 and "\x1b" not in ended.out and f"written to {page}" in ended.out
    browser.read_page(page)
    assert browser.run("window.hacked") is None and browser.complaints == []
    marks = browser.run("[...document.querySelectorAll('mark')].map((mark) => mark.textContent)")
    spans = json.loads(check("--source", SOURCE, "--answer", ANSWER, "--json").out)["spans"]
    assert len(marks) >= len(spans) > 0 and "<script>" in browser.text(".source")
    links = "[...document.querySelectorAll('.answer a[href]')]"
    assert browser.run(f"{links}.every((a) => document.querySelector(a.hash))")
    assert browser.measure_layout(page, width=500).fits


def test_a_file_that_is_no_page_of_a_check_is_not_replaced(check: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine", encoding="utf-8")
    ended = check("--source", SOURCE, "--answer", ANSWER, "--html", tmp_path / "mine.html")
    assert ended.code == 2 and (tmp_path / "mine.html").read_text(encoding="utf-8") == "mine"
