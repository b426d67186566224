"""clew patterns create, import, list, info: output, hints and wrong use."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.library.placing import name_copy
from tests.patterns.library.making import contents, draw, make_photos, pretend_trained


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets lie in the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_create_prints_the_next_commands(run: Any, here: Path) -> None:
    ended = run("patterns", "create", "my cats")
    assert ended.code == 0, ended.err
    assert 'created the set "my cats" in patterns/my cats\n' in ended.out
    assert "clew patterns import 'my cats' DIR\n" in ended.out
    assert "clew patterns flow 'my cats' --from DIR\n" in ended.out
    assert (here / "patterns/my cats/photos").is_dir()


def test_hints_name_a_library_that_is_not_the_default(run: Any) -> None:
    ended = run("patterns", "create", "cats", "--library", "an other")
    assert "clew patterns import cats DIR --library 'an other'\n" in ended.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["create", "a/b"], 'clew: "a/b" cannot be the name of a set: it contains "/"'),
        (["create", "there"], 'there is already a set "there" in "patterns"'),
        (["import", "missing", "photos"], 'there is no set "missing" in "patterns", only "there"'),
        (["import", "there", "nowhere"], 'the folder "nowhere" '),
        (["import", "there", "photos", "--label", "."], "cannot be the name of a class"),
        (["info", "missing"], 'there is no set "missing"'),
        (
            ["import", "there", "photos/cats"],
            'with "clew patterns import there photos/cats --label cats"; otherwise put each class',
        ),
        (
            ["info", "--library", "x"],
            'the library "x" does not exist: create a set with '
            '"clew patterns create NAME --library x", or set --library to the '
            "folder that contains your sets.",
        ),
    ],
)
def test_invalid_usage_prints_one_message_and_exits_with_2(
    run: Any, here: Path, words: list[str], sentence: str
) -> None:
    PatternSet.create("there", here / "patterns")
    make_photos(here / "photos", {"cats": 1, "dogs": 1})
    before = contents(here)
    ended = run("patterns", *words)
    assert ended.code == 2
    assert sentence in ended.err and len(ended.err.splitlines()) == 1
    assert contents(here) == before


def test_import_prints_counts_reasons_and_the_next_command(run: Any, here: Path) -> None:
    PatternSet.create("animals", here / "patterns")
    make_photos(here / "in", {"cats": 3, "[b]dogs 🐶": 4})
    (here / "in/cats/empty.jpg").write_bytes(b"")
    shutil.copy(here / "in/cats/0.png", here / "in/cats/again.png")
    (here / "in/list.txt").write_text("")
    ended = run("patterns", "import", "animals", "in")
    assert ended.code == 0, ended.err
    assert "9 photos to examine" in ended.out and "7 photos to copy" in ended.out
    assert re.search(r"class +added +already there +excluded", ended.out)
    assert re.search(r"^cats +3 +0 +2 *$", ended.out, re.MULTILINE)
    assert re.search(r"^\[b\]dogs 🐶 +4 +0 +0 *$", ended.out, re.MULTILINE)
    assert re.search(r"^all +7 +0 +2 *$", ended.out, re.MULTILINE)
    assert f"excluded: {here}/in/cats/empty.jpg: empty, the file is empty (0 bytes)" in ended.out
    assert "excluded: " + f"{here}/in/cats/again.png: duplicate, the same image as" in ended.out
    assert "ignored 1 file without an image extension" in ended.out
    assert "result for every file: patterns/animals/import.csv" in ended.out
    assert ended.out.endswith("next, train the classifier: clew patterns train animals\n")


def test_importing_again_adds_nothing(run: Any, here: Path) -> None:
    PatternSet.create("animals", here / "patterns")
    make_photos(here / "in", {"cats": 3, "dogs": 3})
    assert run("patterns", "import", "animals", "in").code == 0
    ended = run("patterns", "import", "animals", "in")
    assert re.search(r"^all +0 +6 +0 *$", ended.out, re.MULTILINE)
    assert "to be" not in ended.out


def test_ctrl_c_stops_import_cleanly_and_it_resumes(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    animals = PatternSet.create("animals", here / "patterns")
    make_photos(here / "in", {"cats": 4})

    def interrupted(part: Path, name: str) -> Path:
        signal.raise_signal(signal.SIGINT)
        return name_copy(part, name)

    with monkeypatch.context() as patched:
        patched.setattr("clew.patterns.library.importing.name_copy", interrupted)
        ended = run("patterns", "import", "animals", "in")
    assert ended.code == 130
    assert "stopping: finishing the current photo" in ended.out
    assert ended.out.endswith("stopped. To resume: clew patterns import animals in\n")
    assert list(contents(animals.photos)) == ["cats/0.png"]
    assert run("patterns", "import", "animals", "in").code == 0
    assert len(contents(animals.photos)) == 4


def test_many_excluded_files_are_counted_by_kind(run: Any, here: Path) -> None:
    PatternSet.create("animals", here / "patterns")
    make_photos(here / "in", {"cats": 3})
    for number in range(12):
        (here / f"in/cats/bad{number}.jpg").write_bytes(b"")
    ended = run("patterns", "import", "animals", "in")
    assert ended.out.count("excluded: ") == 10
    assert "... 12 in total: 12 empty" in ended.out
    assert "next, add photos of a second class: " in ended.out


def test_info_shows_classes_runs_folders_and_the_next_command(run: Any, here: Path) -> None:
    animals = PatternSet.create("animals", here / "patterns")
    assert "next, add photos: clew patterns import animals DIR" in run("patterns", "info").out
    make_photos(animals.photos, {"cats": 3, "dogs": 12})
    assert "next, train the classifier: clew patterns train animals" in run("patterns", "info").out
    names = [photo.name for photo in animals.find_photos()]
    pretend_trained(animals.runs / "001", names, accuracy=0.912)
    ended = run("patterns", "info", "animals")
    assert ended.code == 0, ended.err
    assert "animals: 2 classes, 15 photos (" in ended.out
    assert re.search(r"^dogs +12 *$", ended.out, re.MULTILINE)
    assert re.search(r"^001 +[-\d]+ [:\d]+ +15 +91.2% \(80.0% to 95.0%\)", ended.out, re.MULTILINE)
    assert "model:      patterns/animals/runs/001" in ended.out
    assert "next, identify new photos: clew patterns identify FOLDER --name animals" in ended.out
    draw(animals.photos / "cats/new.png", 99)
    ended = run("patterns", "info", "animals")
    assert "since the last training run: 1 new photo\n" in ended.out
    assert "next, train again from the last weights: clew patterns train animals" in ended.out
    (animals.runs / "002").mkdir()
    ended = run("patterns", "info", "animals")
    assert "not finished" in ended.out
    assert "next, resume training: run the same command again" in ended.out
    assert ended.out.endswith("clew patterns train animals\n")
    draw(animals.photos / "wolves/new.png", 98)
    assert 'add photos of "wolves" (at least 3' in run("patterns", "info", "animals").out


def test_list_shows_all_sets(run: Any, here: Path) -> None:
    ended = run("patterns", "list")
    assert ended.code == 0
    assert "no sets in patterns yet. Create one: clew patterns create NAME" in ended.out
    trained = PatternSet.create("b trained", here / "patterns")
    make_photos(trained.photos, {"cats": 3, "dogs": 3})
    pretend_trained(trained.runs / "001", [])
    PatternSet.create("a new", here / "patterns")
    ended = run("patterns", "list")
    assert re.search(r"^a new +0 +0 +- +- *$", ended.out, re.MULTILINE)
    assert re.search(r"^b trained +2 +6 +90.0% \(80.0% to 95.0%\) +\d", ended.out, re.MULTILINE)


def test_damaged_set_does_not_hide_the_others(run: Any, here: Path) -> None:
    for name in ("good", "bad"):
        PatternSet.create(name, here / "patterns")
    (here / "patterns/bad/set.json").write_text("{")
    ended = run("patterns", "list")
    assert ended.code == 0
    assert re.search(r"^good +0 +0", ended.out, re.MULTILINE)
    assert '"patterns/bad/set.json" is damaged' in ended.err


def test_list_and_info_print_the_same_json(run: Any, here: Path) -> None:
    animals = PatternSet.create("animals", here / "patterns")
    make_photos(animals.photos, {"cats": 3, "dogs": 3})
    one = json.loads(run("patterns", "info", "--json").out)
    assert one["classes"] == {"cats": 3, "dogs": 3}
    assert json.loads(run("patterns", "list", "--json").out) == [one]
