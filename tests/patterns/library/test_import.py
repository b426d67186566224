"""Importing: every valid image once, the rest named, nothing overwritten, kills recovered."""

import csv
import errno
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clew.base.errors import DiskFullError, InputError, StoreLockedError
from clew.base.progress import Event, Reporter, WorkAdvanced, WorkStarted
from clew.patterns.library.importing import import_photos
from clew.patterns.library.pattern_set import PatternSet, set_lock
from tests.patterns.library.making import contents, draw, make_photos, tally


@pytest.fixture
def animals(tmp_path: Path) -> PatternSet:
    return PatternSet.create("animals", tmp_path / "library")


def photos_of(pattern_set: PatternSet) -> list[str]:
    return list(contents(pattern_set.photos))


def test_all_class_folders_are_imported_at_once(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "my photos é", {"cats": 2, "🐶 dogs": 1, "cats/old": 1})
    result = import_photos(animals, [source])
    assert tally(result) == {"cats": (3, 0, 0), "🐶 dogs": (1, 0, 0)}
    assert photos_of(animals) == ["cats/0-2.png", "cats/0.png", "cats/1.png", "🐶 dogs/0.png"]
    assert len(contents(source)) == 4


def test_split_folders_are_merged(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"train/cats": 2, "train/dogs": 2, "test/cats": 1})
    assert tally(import_photos(animals, [source])) == {"cats": (3, 0, 0), "dogs": (2, 0, 0)}


def test_importing_twice_adds_nothing_twice(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2, "dogs": 1})
    shutil.copy(source / "cats/0.png", source / "cats/again.png")
    first = import_photos(animals, [source])
    before = contents(animals.folder)
    second = import_photos(animals, [source])
    assert tally(first) == {"cats": (2, 0, 1), "dogs": (1, 0, 0)}
    assert tally(second) == {"cats": (0, 2, 1), "dogs": (0, 1, 0)}
    assert contents(animals.folder) == before


def test_same_images_from_elsewhere_are_recognized(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2, "dogs": 1})
    import_photos(animals, [source])
    other = tmp_path / "other"
    for path in source.rglob("*.png"):  # another name, another format, the same pixels
        target = other / path.parent.name / f"IMG {path.stem}.bmp"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(target)
    assert tally(import_photos(animals, [other])) == {"cats": (0, 2, 0), "dogs": (0, 1, 0)}


def test_photos_added_by_hand_are_recognized(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2})
    shutil.copytree(source / "cats", animals.photos / "cats")
    assert tally(import_photos(animals, [source])) == {"cats": (0, 2, 0)}
    assert photos_of(animals) == ["cats/0.png", "cats/1.png"]


def test_imports_accumulate_and_existing_names_get_a_number(
    animals: PatternSet, tmp_path: Path
) -> None:
    for number in range(3):
        make_photos(tmp_path / f"in{number}", {"cats": 1}, first_seed=number)
        import_photos(animals, [tmp_path / f"in{number}"])
    assert photos_of(animals) == ["cats/0-2.png", "cats/0-3.png", "cats/0.png"]


def test_bad_files_are_excluded_and_listed_with_the_reason(
    animals: PatternSet, tmp_path: Path
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2, "dogs": 2})
    whole = (source / "cats/0.png").read_bytes()
    (source / "cats/cut.png").write_bytes(whole[: len(whole) // 2])
    (source / "cats/empty.jpg").write_bytes(b"")
    (source / "cats/text.png").write_text("hello")
    (source / "cats/notes.txt").write_text("hello")
    draw(source / "cats/tiny.png", 50, side=3)
    shutil.copy(source / "dogs/0.png", source / "dogs/copy.png")
    shutil.copy(source / "dogs/1.png", source / "cats/also a dog.png")
    draw(source / "loose.png", 51)
    result = import_photos(animals, [source])
    assert tally(result) == {"": (0, 0, 1), "cats": (2, 0, 5), "dogs": (1, 0, 2)}
    assert result.other_files == 1
    with result.listing.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {Path(row["file"]).name: row["kind"] for row in rows if row["result"] == "excluded"}
    assert kinds == {
        "cut.png": "truncated",
        "empty.jpg": "empty",
        "text.png": "not an image",
        "tiny.png": "tiny",
        "copy.png": "duplicate",
        "also a dog.png": "contradiction",
        "1.png": "contradiction",
        "loose.png": "no class",
    }
    assert all(row["reason"] for row in rows if row["result"] == "excluded")
    assert [row["photo"] for row in rows if row["result"] == "added"] == photos_of(animals)


def test_import_reads_the_journal_of_an_earlier_version(
    animals: PatternSet, tmp_path: Path
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 1})
    (source / "cats/empty.jpg").write_bytes(b"")
    import_photos(animals, [source])
    journal = animals.folder / "photos.jsonl"
    journal.write_text(journal.read_text().replace('"excluded"', '"left out"'))
    result = import_photos(PatternSet.open(animals.name, animals.folder.parent), [source])
    assert tally(result) == {"cats": (0, 1, 1)}
    assert "empty.jpg,cats,excluded,empty" in result.listing.read_text(encoding="utf-8")


def test_image_of_another_class_of_the_set_is_excluded(animals: PatternSet, tmp_path: Path) -> None:
    import_photos(animals, [make_photos(tmp_path / "in", {"cats": 1})])
    result = import_photos(animals, [make_photos(tmp_path / "other", {"dogs": 1})])
    assert [source.kind for source in result.excluded] == ["contradiction"]
    assert photos_of(animals) == ["cats/0.png"]


@pytest.mark.slow
def test_repaired_file_is_imported(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 1})
    (source / "cats/1.png").write_bytes(b"")
    assert tally(import_photos(animals, [source])) == {"cats": (1, 0, 1)}
    draw(source / "cats/1.png", 9)
    assert tally(import_photos(animals, [source])) == {"cats": (1, 1, 0)}


def test_moving_deletes_what_was_added_and_nothing_else(
    animals: PatternSet, tmp_path: Path
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2})
    before = sorted(contents(source).values())
    (source / "cats/bad.png").write_bytes(b"")
    import_photos(animals, [source], move=True)
    assert contents(source) == {"cats/bad.png": b""}
    assert sorted(contents(animals.photos).values()) == before


def test_moving_deletes_nothing_that_a_linked_folder_leads_to(
    animals: PatternSet, tmp_path: Path
) -> None:
    source = draw(tmp_path / "in/cats/one.png", 7).parents[1]
    others = make_photos(tmp_path / "private", {"dogs": 2})
    (source / "dogs").symlink_to(others / "dogs")
    (tmp_path / "link").symlink_to(source)
    before = contents(others)
    result = import_photos(animals, [tmp_path / "link"], move=True)
    assert tally(result) == {"cats": (1, 0, 0), "dogs": (2, 0, 0)}
    assert contents(others) == before
    assert not list((source / "cats").iterdir())


def test_label_applies_to_loose_photos_and_single_files(
    animals: PatternSet, tmp_path: Path
) -> None:
    make_photos(tmp_path, {"in": 2})
    one = draw(tmp_path / "one.png", 7)
    result = import_photos(animals, [tmp_path / "in", one], label=" red pandas ")
    assert tally(result) == {"red pandas": (3, 0, 0)}


def test_several_folders_of_photos_are_one_class_each(animals: PatternSet, tmp_path: Path) -> None:
    make_photos(tmp_path / "in", {"cats": 1, "dogs": 2})
    result = import_photos(animals, [tmp_path / "in/cats", tmp_path / "in/dogs"])
    assert tally(result) == {"cats": (1, 0, 0), "dogs": (2, 0, 0)}


@pytest.mark.parametrize(
    ("source", "label", "sentence"),
    [
        ("in/cats", None, 'not in class folders: .*import_photos.*cats", label="cats"'),
        ("in/cats/0.png", None, "is a single file: give its class with `label`"),
        ("in/text.dat", "cats", "does not have a photo extension"),
        ("in", "a/b", 'cannot be the name of a class: it contains "/"'),
        ("in", "..", "it starts or ends with a dot"),
        ("in", " ", "it is empty"),
        ("in", "x" * 300, "it is 300 characters long"),
        ("in", "a\nb", "an invisible character"),
        ("nowhere", None, 'nowhere" .*: check the path'),
        ("empty", None, "photos"),
        (".", None, 'contains the set "animals" itself'),
        ("library/animals/photos", "cats", 'is inside the set "animals"'),
    ],
)
def test_invalid_import_is_reported_and_changes_nothing(
    animals: PatternSet, tmp_path: Path, source: str, label: str | None, sentence: str
) -> None:
    make_photos(tmp_path / "in", {"cats": 1, "dogs": 1})
    (tmp_path / "in/text.dat").write_text("")
    (tmp_path / "empty").mkdir()
    before = contents(animals.folder)
    with pytest.raises(InputError, match=sentence):
        import_photos(animals, [tmp_path / source], label=label)
    assert contents(animals.folder) == before


def kill(task: str, after: int) -> Reporter:
    """Ends everything in the middle of one of the two tasks."""
    verb = ""

    def report(event: Event) -> None:
        nonlocal verb, after
        if isinstance(event, WorkStarted):
            verb = event.verb
        elif isinstance(event, WorkAdvanced) and verb == task:
            after -= 1
        if after < 0:
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize(("task", "after"), [("examined", 3), ("copied", 0), ("copied", 4)])
def test_interrupted_import_resumes(
    animals: PatternSet, tmp_path: Path, task: str, after: int
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 4, "dogs": 4})
    with pytest.raises(KeyboardInterrupt):
        import_photos(animals, [source], reporter=kill(task, after))
    with (animals.folder / "photos.jsonl").open("ab") as file:
        file.write(b'{"photo": "ca')  # a line truncated by the kill
    (animals.photos / "cats").mkdir(exist_ok=True)
    killed = subprocess.Popen(["true"])
    killed.wait()
    (animals.photos / f"cats/.clew-{killed.pid}-1.part").write_bytes(b"half")
    import_photos(animals, [source])
    assert sorted(contents(animals.photos).items()) == sorted(contents(source).items())
    assert tally(import_photos(animals, [source])) == {"cats": (0, 4, 0), "dogs": (0, 4, 0)}


@pytest.mark.slow
def test_killed_import_loses_nothing(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 150, "dogs": 150})
    command = ("patterns", "import", "animals", source, "--library", animals.folder.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "clew", *map(str, command)], stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not any(animals.photos.rglob("*.png")):
        time.sleep(0.01)  # lets it work
    process.send_signal(signal.SIGKILL)
    process.wait()
    import_photos(animals, [source])
    assert contents(animals.photos) == contents(source)


def test_photo_deleted_during_import_is_reported(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2})

    def take(event: Event) -> None:
        if isinstance(event, WorkStarted) and event.verb == "copied":
            (source / "cats/0.png").unlink()

    result = import_photos(animals, [source], reporter=take)
    assert tally(result) == {"cats": (1, 0, 1)}
    assert "not copied (No such file or directory)" in result.excluded[0].reason


def test_another_set_can_be_imported(animals: PatternSet, tmp_path: Path) -> None:
    other = PatternSet.create("other", tmp_path / "library")
    make_photos(other.photos, {"cats": 2, "dogs": 1})
    assert tally(import_photos(animals, [other.folder])) == {"cats": (2, 0, 0), "dogs": (1, 0, 0)}


def test_stopped_import_says_so_and_lists_what_it_did(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 3})
    result = import_photos(
        animals, [source], should_stop=lambda: (animals.photos / "cats/1.png").exists()
    )
    assert not result.is_finished
    assert photos_of(animals) == ["cats/0.png", "cats/1.png"]
    assert len(result.listing.read_text(encoding="utf-8").splitlines()) == 3
    assert import_photos(animals, [source]).is_finished


def test_too_little_space_is_reported_before_anything_is_copied(
    animals: PatternSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 2})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(DiskFullError, match="Nothing was copied"):
        import_photos(animals, [source])
    assert photos_of(animals) == []


def test_full_disk_keeps_photos_already_imported(
    animals: PatternSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_photos(tmp_path / "in", {"cats": 3})
    copy = shutil.copyfileobj

    def fill(reading: Any, writing: Any, length: int) -> None:
        if Path(reading.name).name == "2.png":
            writing.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(reading, writing, length)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", fill)
        with pytest.raises(DiskFullError, match="Free some space, then run the same command again"):
            import_photos(animals, [source], move=True)
    assert photos_of(animals) == ["cats/0.png", "cats/1.png"]
    assert list(contents(source)) == ["cats/2.png"]
    import_photos(animals, [source], move=True)
    assert len(photos_of(animals)) == 3


def test_concurrent_imports_are_refused(animals: PatternSet, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "in", {"cats": 1})
    with set_lock(animals), pytest.raises(StoreLockedError, match="another process is adding"):
        import_photos(animals, [source])
