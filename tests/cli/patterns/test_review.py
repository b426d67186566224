"""clew patterns review: piped answers, the page in its own process, wrong use."""

import io
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from clew.cli import main
from clew.patterns.library.pattern_set import PatternSet
from tests.forking import HANGS_SECONDS
from tests.patterns.review.making import identify, list_photos, make_model, make_set
from tests.patterns.review.terminals import in_a_terminal


@pytest.fixture
def animals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PatternSet:
    """The only set of the library in the current folder."""
    monkeypatch.chdir(tmp_path)
    made = make_set(Path())
    identify(made.folder, tmp_path / "my holiday", sure=["d.png"])
    return made


@pytest.mark.usefixtures("animals")
def test_piped_answers_are_applied_and_the_next_command_is_printed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nc lion\ny\ns\n"))
    ended = run("patterns", "review")
    assert ended.code == 0, ended.err
    assert "3 photos to review, from patterns/animals/identified/my holiday" in ended.out
    assert "1 confident prediction not shown (--all includes them)" in ended.out
    assert '1 could not be opened: "bad.jpg"' in ended.out
    assert "cat: copied to patterns/animals/photos/cat/a.png" in ended.out
    assert (
        "1 approved, 1 corrected, 1 skipped\nNew classes, with their photos: lion (1). "
        in ended.out
    )
    assert ended.out.endswith("from the last weights with: clew patterns train animals\n")
    again = run("patterns", "review", "animals")
    assert again.code == 0 and "0 photos to review" in again.out
    assert "in earlier reviews: 2 reviewed, 1 skipped (--all includes them)" in again.out


def test_earlier_identification_is_reviewed_if_the_newest_has_nothing_left(
    run: Any, animals: PatternSet, tmp_path: Path
) -> None:
    identify(animals.folder, tmp_path / "later", names=["e.png"], sure=["e.png"])
    ended = run("patterns", "review", "animals", "--no-browser")
    assert "3 photos to review, from patterns/animals/identified/my holiday" in ended.out


def test_photos_are_moved_and_a_review_can_be_quit(
    run: Any, animals: PatternSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\nq\n"))
    ended = run("patterns", "review", "animals", "--move", "--all")
    assert ended.code == 0, ended.err
    assert "cat: moved to patterns/animals/photos/cat/a.png" in ended.out
    left = "3 left, continue with: clew patterns review animals --move --all"
    assert f"1 approved, 0 corrected, 0 skipped; {left}\n" in ended.out
    assert not (tmp_path / "my holiday" / "a.png").exists()
    assert "cat/a.png" in list_photos(animals.photos)


@pytest.mark.slow
def test_page_is_served_until_the_review_is_finished(animals: PatternSet) -> None:
    with start("--web") as process:
        address = read_address(process)
        reply = ask(f"{address}answer", {"question": 0, "action": "approve"})
        assert "copied to" in reply["message"]
        ask(f"{address}done", {})
        out, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 0 and err == "", err
    assert "1 approved" in out and "clew patterns train animals" in out
    assert "cat/a.png" in list_photos(animals.photos)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signal_stops_review_page_cleanly(animals: PatternSet, number: int, code: int) -> None:
    with start("--web") as process:
        ask(f"{read_address(process)}answer", {"question": 0, "action": "skip"})
        process.send_signal(number)
        out, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == code and err == ""
    again = "continue with: clew patterns review animals --web"
    assert f"1 skipped; 2 left, {again}\n" in out and (animals.folder / "review.jsonl").exists()


def test_ctrl_c_at_the_terminal_keeps_the_decisions(
    animals: PatternSet, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # As an earlier step of a flow has it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(sys, "argv", ["clew", "patterns", "review"])
    shown = in_a_terminal(main, ("Enter: cat", b"a"), ("Enter: dog", b"\x03"))
    assert "1 approved, 0 corrected, 0 skipped; 2 left" in shown and "Traceback" not in shown
    assert "cat/a.png" in list_photos(animals.photos)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nobody",), 'there is no set "nobody"'),
        (("--model", "gone"), 'there is no model at "gone"'),
        (("animals", "--identified", "gone"), 'there is no "gone"'),
        (("animals", "--data", "gone"), 'there is no folder "gone"'),
        (("--web", "--port", "99999"), "--port is 99999: choose one from 1024 to 65535"),
    ],
)
@pytest.mark.usefixtures("animals")
def test_invalid_usage_exits_with_2(run: Any, options: tuple[str, ...], message: str) -> None:
    ended = run("patterns", "review", *options)
    assert ended.code == 2 and message in ended.err


def test_model_outside_a_set_can_be_reviewed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(tmp_path / "out", tmp_path / "data")
    nothing = run("patterns", "review", "--model", model)
    assert nothing.code == 2 and f"clew patterns identify FOLDER --model {model}" in nothing.err
    identify(model, tmp_path / "new")
    monkeypatch.setattr(sys, "stdin", io.StringIO("2\n"))
    ended = run("patterns", "review", "--model", model)
    assert ended.code == 0, ended.err
    assert (tmp_path / "data" / "dog" / "a.png").exists()
    assert f"--start-from {model} --out {model}-2" in ended.out


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "clew", "patterns", "review", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def read_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line):
            return found[0]
    raise AssertionError("no address was printed")


def ask(address: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return dict(json.load(reply))
