"""clew label: what it prints, its exit codes, and the judge's settings."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.labels import read_scores
from clew.hallucination.labels.label import label_store
from clew.storage.text_files import read_csv
from tests.forking import HANGS_SECONDS
from tests.hallucination.labels.judge_server import Reply, judge_server
from tests.hallucination.labels.text_stores import trace_row, write_text_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = [
        trace_row(0, "[bold]Rome\x1b[2J", ["Rome"], category="capital"),
        trace_row(1, "It is Oslo", ["Rome"], category="capital"),
        trace_row(2, "Bonn", ["Rome"], category="city"),
        trace_row(3, "Bern", None, category="city"),
    ]
    return write_text_store(tmp_path / "text", rows, planned_rows=9)


@pytest.mark.slow
def test_captured_store_is_labeled(run: Any, compact_store: Path, tmp_path: Path) -> None:
    ended = run("label", compact_store, "--out", tmp_path / "new" / "scores.csv")
    assert ended.code == 0, ended.err
    assert "70 of 70 answers are hallucinated (100.0%) at score < 0.5" in ended.out
    assert len(read_scores(tmp_path / "new" / "scores.csv").labels) == 70


def test_label_prints_hallucinated_excluded_and_borderline_answers(
    run: Any, store: Path, tmp_path: Path
) -> None:
    ended = run("label", store, "--out", tmp_path / "s[/x].csv")
    assert ended.code == 0, ended.err
    assert "2 of 3 answers are hallucinated (66.7%) at score < 0.5\n" in ended.out
    assert "excluded: 1 answer has no accepted answers, e.g. q3\n" in ended.out
    assert "the store is incomplete: it has 4 of 9 planned answers\n" in ended.out
    assert re.search(r"capital +2 +1 +50.0%", ended.out)
    assert "[bold]Rome\\u001b[2J" in ended.out and "\x1b" not in ended.out
    assert f"scores in {tmp_path / 's[/x].csv'}\n" in ended.out


def test_labels_to_check_are_marked_doubtful_and_smaller_doubts_borderline(
    run: Any, tmp_path: Path
) -> None:
    answers = ("New Rom", "Bonn", "It is surely New Rome")
    rows = [trace_row(number, text, ["New Rome"]) for number, text in enumerate(answers)]
    ended = run("label", write_text_store(tmp_path / "text", rows), "--out", tmp_path / "s.csv")
    assert ended.code == 0, ended.err
    assert re.search(r"doubtful +\W .*New Rom ", ended.out)
    assert re.search(r"borderline +\W .*It is surely", ended.out)
    assert "check 1 doubtful label with" in ended.out


def test_repeated_label_changes_nothing_and_other_method_requires_overwrite(
    run: Any, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.csv"
    run("label", store, "--out", out)
    assert f"scores in {out} (unchanged)" in run("label", store, "--out", out).out
    other = ("label", store, "--out", out, "--method", "rouge-l")
    refused = run(*other)
    assert refused.code == 2 and "replace it with --overwrite" in refused.err
    assert run(*other, "--overwrite").code == 0


def test_judge_key_comes_from_the_environment_and_is_never_printed(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret\n")
    with judge_server(lambda *_: Reply(content="NO")) as server:
        address = ("--judge-url", server.url, "--judge-model", "m", "--judge-key-env", "MY_KEY")
        ended = run("label", store, "--out", tmp_path / "scores.csv", *address)
        assert ended.code == 0, ended.err
        assert set(server.keys) == {"Bearer sk-secret"}
    assert "3 of 3 answers are hallucinated" in ended.out
    assert "3/3 answers judged" in ended.out
    assert "sk-secret" not in ended.out + ended.err


def test_config_file_sends_no_key_to_a_judge_of_its_choice(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    file = tmp_path / "run.toml"
    words = ("label", store, "--out", tmp_path / "scores.csv", "--config", file)
    with judge_server(lambda *_: Reply(content="NO")) as server:
        file.write_text(
            f'judge_url = "{server.url}"\njudge_model = "m"\n'
            'judge-key-env = "AWS_SECRET_ACCESS_KEY"\n'
        )
        refused = run(*words)
        assert refused.code == 2 and f"it sets judge_url to '{server.url}'" in refused.err
        assert "give --judge-url and --judge-key-env on the command line" in refused.err
        other_key = run(*words, "--judge-url", server.url)
        assert other_key.code == 2 and "give --judge-key-env on the command" in other_key.err
        assert not server.asked

        flags = ("--judge-url", server.url, "--judge-key-env", "OPENAI_API_KEY")
        assert run(*words, *flags).code == 0
        assert set(server.keys) == {"Bearer key"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_review_page_saves_corrections_until_it_ends(
    store: Path, tmp_path: Path, number: int | None
) -> None:
    out = tmp_path / "scores.csv"
    label_store(store, out)
    command = [sys.executable, "-m", "clew", "label", str(store), "--out", str(out)]
    command += ["--review", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(line for line in lines if "review page: " in line).split()[-1]
        post(f"{address}answer", {"question": 0, "action": "correct"})
        if number is None:
            post(f"{address}done", {})
        else:
            process.send_signal(number)
        printed, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 0 and err == "", err
    assert [row["correction"] for row in read_csv(out)].count("correct") == 1
    assert "reviewed: 1 correct" in printed and "corrected by hand: 1 answer" in printed
    assert "(unchanged)" not in printed


def post(address: str, body: dict[str, Any]) -> None:
    sent = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


def test_unreachable_judge_exits_with_1(run: Any, store: Path, tmp_path: Path) -> None:
    with judge_server(lambda *_: Reply()) as server:
        gone = server.url
    settings = ("--judge-url", gone, "--judge-model", "m")
    ended = run("label", store, "--out", tmp_path / "scores.csv", *settings)
    assert ended.code == 1
    assert (
        "the connection failed" in ended.err
        and "Run the same command again to resume." in ended.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--judge-url", "http://x/v1"), "Give --judge-model as well"),
        (("--judge-model", "m"), "Give --judge-url as well"),
        (("--judge-url", "x", "--judge-model", "m"), "URL as http://host:port/v1"),
        (
            ("--judge-url", "http://x", "--judge-model", "m", "--method", "exact"),
            "only one of",
        ),
        (("--score-threshold", "2"), "--score-threshold is 2.0: it must be greater than 0"),
    ],
)
def test_contradictory_settings_exit_with_2(
    run: Any, store: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    ended = run("label", store, "--out", tmp_path / "scores.csv", *options)
    assert ended.code == 2
    assert message in ended.err
