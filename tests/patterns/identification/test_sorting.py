"""Copies in class folders: complete, never over another file, never outside."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.identification.identify import ClassFolders, class_folder
from clew.patterns.identification.results import Identified
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.photos.photo import Fault


def photo(path: Path, label: str, *, doubtful: bool = False, content: str = "") -> Identified:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content or str(path), encoding="utf-8")
    return Identified(name=path.name, path=path, best=((label, 0.9),), doubtful=doubtful)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_photos_go_to_their_class_and_doubtful_ones_apart(tmp_path: Path) -> None:
    copies = ClassFolders(tmp_path / "to")
    copies.add(photo(tmp_path / "a ñ.jpg", "gatos 🐈"))
    copies.add(photo(tmp_path / "b.jpg", "dogs", doubtful=True))
    assert names(tmp_path / "to") == {"gatos 🐈/a ñ.jpg", "_doubtful/b.jpg"}
    assert (tmp_path / "a ñ.jpg").exists() and copies.copied == 2


def test_equal_names_are_numbered_and_a_second_run_copies_nothing(tmp_path: Path) -> None:
    photos = [photo(tmp_path / folder / "a.jpg", "cats") for folder in ("x", "y", "z")]
    for counts in ((3, 0), (0, 3)):
        copies = ClassFolders(tmp_path / "to")
        for one in photos:
            copies.add(one)
        assert (copies.copied, copies.already_there) == counts
    assert names(tmp_path / "to") == {"cats/a.jpg", "cats/a-2.jpg", "cats/a-3.jpg"}


def test_existing_files_stay(tmp_path: Path) -> None:
    mine = tmp_path / "to" / "cats" / "a.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    ClassFolders(tmp_path / "to").add(photo(tmp_path / "a.jpg", "cats"))
    assert mine.read_text(encoding="utf-8") == "mine"
    assert names(tmp_path / "to") == {"cats/a.jpg", "cats/a-2.jpg"}


def test_name_of_maximum_length_is_copied_twice(tmp_path: Path) -> None:
    long = f"{'ñ' * 125}.jpg"
    copies = ClassFolders(tmp_path / "to")
    for folder in ("x", "y"):
        copies.add(photo(tmp_path / folder / long, "cats"))
    assert copies.copied == 2 and len(names(tmp_path / "to")) == 2


def test_faulty_photos_are_not_copied(tmp_path: Path) -> None:
    fault = Fault(name="a.jpg", label=None, kind="empty", reason="it is empty")
    copies = ClassFolders(tmp_path / "to")
    copies.add(
        Identified(name="a.jpg", path=tmp_path / "a.jpg", best=(), doubtful=False, fault=fault)
    )
    assert copies.copied == 0 and not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("label", "folder"),
    [
        ("../../etc", "_.._etc"),
        ("..", "_"),
        ("a/b\\c", "a_b_c"),
        ("_doubtful", "_doubtful_"),
        ("gatos ñ", "gatos ñ"),
    ],
)
def test_no_class_leads_out_of_the_folder(label: str, folder: str) -> None:
    assert class_folder(label) == folder


def test_vanished_photo_is_counted_and_the_others_continue(tmp_path: Path) -> None:
    copies = ClassFolders(tmp_path / "to")
    gone = photo(tmp_path / "a.jpg", "cats")
    gone.path.unlink()
    copies.add(gone)
    copies.add(photo(tmp_path / "b.jpg", "cats"))
    assert (copies.copied, copies.lost) == (1, 1) and names(tmp_path / "to") == {"cats/b.jpg"}


def test_predictions_are_not_put_among_the_photos_of_a_set(tmp_path: Path) -> None:
    made = PatternSet.create("animals", tmp_path)
    for folder in (made.photos, made.photos / "cats"):
        with pytest.raises(InputError, match='the set "animals", but predictions may be'):
            ClassFolders(folder)
    ClassFolders(made.folder / "sorted")


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match='copy_to is ".*to": it is a file'):
        ClassFolders(tmp_path / "to")
