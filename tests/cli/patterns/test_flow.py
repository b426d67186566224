"""clew patterns flow: from folders of photos to identified and reviewed photos."""

import io
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import SettingsMismatchError
from clew.patterns.library.pattern_set import PatternSet
from tests.patterns.library.making import contents, draw, make_photos

QUICK = ("--epochs", 1, "--device", "cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets lie in the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("random_lite0")
def test_flow_runs_all_steps_and_resumes(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(here / "my photos", {"cats": 6, "dogs 🐶": 6})
    make_photos(here, {"new": 2}, first_seed=50)
    flow = ("patterns", "flow", "animals", "--from", "my photos", *QUICK)

    first = run(*flow, "--identify", "new")
    assert first.code == 0, first.err
    assert "\nnext:" not in first.out and first.out.count("next") == 1
    steps = ("created the set", "\nimport\n", "all ", "\ntrain\n", "test accuracy", "\nidentify\n")
    places = [first.out.index(step) for step in steps]
    assert places == sorted(places)
    assert ("doubtful photos with: clew patterns review animals\n" in first.out) == (
        "none doubtful" not in first.out
    )
    assert (here / "patterns/animals/runs/001/results.json").exists()
    assert (here / "patterns/animals/identified/new/identified.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))
    again = run(*flow, "--review")
    assert again.code == 0, again.err
    assert re.search(r"^all +0 +12 +0 *$", again.out, re.MULTILINE)
    assert "no photos have been added or removed" in again.out and "test accuracy" in again.out
    assert "created the set" not in again.out
    assert re.search(r"\nreview\n\d+ photos? to review", again.out)
    assert not (here / "patterns/animals/runs/002").exists()

    told = run(*flow, "--json")
    assert json.loads(told.out)["results"]["test_photos"] > 0 and "import" in told.err

    draw(here / "my photos/cats/new.png", 70)
    more = run(*flow)
    assert more.code == 0, more.err
    assert re.search(r"^all +1 +12 +0 *$", more.out, re.MULTILINE)
    assert "the weights in patterns/animals/runs/001" in more.out
    assert (here / "patterns/animals/runs/002/results.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], 'there is no set "new" in "patterns" yet: give the photos to import with --from'),
        (["--from", "nowhere"], 'there is no folder "nowhere"'),
        (["--from", "in", "--identify", "empty"], "no photos"),
        (["--from", "in", "--review"], "give the photos to identify with --identify"),
        (["--from", "in", "--web"], "give the photos to identify with --identify"),
    ],
)
def test_invalid_usage_is_refused_before_any_work(
    run: Any, here: Path, words: list[str], sentence: str
) -> None:
    make_photos(here / "in", {"cats": 3, "dogs": 3})
    (here / "empty").mkdir()
    before = contents(here)
    ended = run("patterns", "flow", "new", *words)
    assert ended.code == 2
    assert sentence in ended.err
    assert contents(here) == before


def test_changed_settings_print_command_to_start_over(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(PatternSet.create("my animals", here / "patterns").photos, {"cats": 3, "dogs": 3})

    def refuse(*_: Any, **__: Any) -> None:
        raise SettingsMismatchError("config.epochs: was 9, is now 30.")

    monkeypatch.setattr("clew.patterns.flow.run_training", refuse)
    ended = run("patterns", "flow", "my animals")
    assert ended.code == 1
    assert "is now 30. To start over: clew patterns train 'my animals' --overwrite\n" in ended.err


@pytest.mark.slow
def test_set_that_cannot_be_trained_keeps_its_photos(run: Any, here: Path) -> None:
    make_photos(here / "in", {"cats": 3})
    ended = run("patterns", "flow", "animals", "--from", "in", *QUICK)
    assert ended.code == 2
    assert "only one class" in ended.err
    assert len(PatternSet.open(library=here / "patterns").find_photos()) == 3
