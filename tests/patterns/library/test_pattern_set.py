"""A set: its name, its photos, its training runs."""

from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreError
from clew.patterns.library.importing import import_photos
from clew.patterns.library.pattern_set import PatternSet, summarize_set
from tests.patterns.library.making import draw, make_photos, pretend_trained


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "my library"


@pytest.fixture
def animals(library: Path, tmp_path: Path) -> PatternSet:
    made = PatternSet.create("animals", library)
    import_photos(made, [make_photos(tmp_path / "in", {"cats": 3, "dogs": 3})])
    return made


def test_set_is_found_by_name_or_as_the_only_one(library: Path) -> None:
    made = PatternSet.create("Pájaros 🐦", library)
    assert PatternSet.open("Pájaros 🐦", library) == PatternSet.open(library=library) == made
    assert PatternSet.all(library) == [made]
    assert PatternSet.all(library / "nowhere") == []


def test_ambiguous_or_missing_set_is_reported(library: Path) -> None:
    with pytest.raises(InputError, match="does not exist: create a set with clew.patterns.create"):
        PatternSet.open(library=library)
    for name in ("b", "a"):
        PatternSet.create(name, library)
    with pytest.raises(InputError, match='2 sets in .*: choose one of "a", "b"'):
        PatternSet.open(library=library)
    with pytest.raises(InputError, match='no set "c" in .*, only "a", "b"'):
        PatternSet.open("c", library)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 200, "a\x00b"])
def test_name_that_cannot_be_a_folder_is_refused(library: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a set"):
        PatternSet.create(name, library)
    assert not library.exists()


def test_existing_files_are_left_alone(library: Path) -> None:
    PatternSet.create("a", library)
    with pytest.raises(InputError, match='there is already a set "a"'):
        PatternSet.create("a", library)
    draw(library / "holiday" / "1.png", 0)
    with pytest.raises(InputError, match="already exists and is not a set"):
        PatternSet.create("holiday", library)
    (library / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a set"):
        PatternSet.create("file", library)
    with pytest.raises(InputError, match="cannot be created"):
        PatternSet.create("b", library / "file")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', "\x00"])
def test_damaged_set_file_is_reported(library: Path, text: str) -> None:
    made = PatternSet.create("a", library)
    (made.folder / "set.json").write_text(text)
    with pytest.raises(StoreError, match="damaged or was not written by clew"):
        PatternSet.open("a", library)


def test_runs_are_numbered_and_start_from_the_last_weights(animals: PatternSet) -> None:
    names = [photo.name for photo in animals.find_photos()]
    assert animals.latest_model() is None
    assert animals.run_folder() == (animals.runs / "001", None)
    first = pretend_trained(animals.runs / "001", names)
    assert animals.latest_model() == first
    assert animals.run_folder() == (animals.runs / "002", first)


def test_unfinished_run_is_resumed(animals: PatternSet, tmp_path: Path) -> None:
    names = [photo.name for photo in animals.find_photos()]
    first = pretend_trained(animals.runs / "001", names)
    second = pretend_trained(animals.runs / "002", names)
    (second / "results.json").unlink()
    assert animals.latest_model() == first
    assert animals.run_folder() == (second, first)
    animals.add(draw(tmp_path / "new.png", 77), "cats")
    assert animals.run_folder() == (animals.runs / "003", first)


def test_photo_is_added_once_under_a_free_name(animals: PatternSet, tmp_path: Path) -> None:
    new = draw(tmp_path / "0.png", 77)
    assert animals.add(new, "cats") == animals.photos / "cats/0-2.png"
    assert animals.add(new, "cats") == animals.photos / "cats/0-2.png"
    with pytest.raises(InputError, match='the same image is in "cats"'):
        animals.add(new, "dogs")
    assert new.exists()
    other = draw(tmp_path / "1.png", 78)
    assert animals.add(other, "red pandas", move=True) == animals.photos / "red pandas/1.png"
    assert not other.exists()


def test_photos_added_by_other_processes_are_seen(
    animals: PatternSet, library: Path, tmp_path: Path
) -> None:
    first, second = draw(tmp_path / "a.png", 77), draw(tmp_path / "b.png", 78)
    animals.add(first, "cats")
    with (animals.folder / "photos.jsonl").open("ab") as journal:
        journal.write(b'{"photo": "cats/cut')  # by one that was killed
    PatternSet.open("animals", library).add(second, "cats")
    with pytest.raises(InputError, match='the same image is in "cats"'):
        animals.add(second, "dogs")


def test_invalid_photo_or_class_is_refused(animals: PatternSet, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(InputError, match='a.png" cannot be added to "cats"'):
        animals.add(tmp_path / "a.png", "cats")
    with pytest.raises(InputError, match="cannot be the name of a class"):
        animals.add(draw(tmp_path / "b.png", 9), "../cats")


def test_accents_encoded_in_two_ways_are_one_class(animals: PatternSet, tmp_path: Path) -> None:
    draw(animals.photos / "pa\u0301jaros" / "0.png", 50)
    placed = animals.add(draw(tmp_path / "1.png", 51), "p\u00e1jaros")
    assert placed.parent == animals.photos / "pa\u0301jaros"
    assert animals.add(tmp_path / "1.png", "p\u00e1jaros") == placed
    assert summarize_set(animals).classes["p\u00e1jaros"] == 2


def test_summary_gives_classes_runs_and_what_is_new(animals: PatternSet, tmp_path: Path) -> None:
    names = [photo.name for photo in animals.find_photos()]
    pretend_trained(animals.runs / "001", [*names[1:], "cats/gone.png"], accuracy=0.875)
    animals.add(draw(tmp_path / "new.png", 77), "wolves")
    summary = summarize_set(animals)
    assert summary.classes == {"cats": 3, "dogs": 3, "wolves": 1}
    assert summary.small_classes() == ["wolves"]
    assert summary.model is not None and summary.model.test_accuracy == 0.875
    assert summary.change is not None
    assert (summary.change.new, summary.change.gone) == (2, 1)
