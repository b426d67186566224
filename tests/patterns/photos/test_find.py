"""Folders as people have them: photos and classes are found, the rest is counted or named."""

import os
import tempfile
import unicodedata
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.photos import PhotoFolder, find_classes, find_photos
from tests.patterns.photos.making import fill


def _names(folder: PhotoFolder) -> list[str]:
    return [photo.name for photo in folder.photos]


def _faults(folder: PhotoFolder) -> dict[str, str]:
    return {fault.name: fault.kind for fault in folder.faults}


def test_each_folder_becomes_a_class(tmp_path: Path) -> None:
    fill(tmp_path, ["10/a.jpg", "2/b.PNG", "2/a10.jpeg", "2/a9.webp", "2/notes.txt", "Ten/x.tiff"])
    folder = find_classes(tmp_path)
    assert folder.classes == ("2", "10", "Ten")
    assert _names(folder) == ["2/a9.webp", "2/a10.jpeg", "2/b.PNG", "10/a.jpg", "Ten/x.tiff"]
    assert [photo.label for photo in folder.photos] == ["2", "2", "2", "10", "Ten"]
    assert {photo.split for photo in folder.photos} == {None} and not folder.split_folders
    assert folder.photos[0].path == tmp_path / "2/a9.webp" and folder.root == tmp_path
    assert folder.other_files == 1 and folder.faults == ()


def test_deeper_folders_belong_to_their_class(tmp_path: Path) -> None:
    fill(tmp_path, ["cats/2019/may/a.jpg", "cats/b.jpg", "dogs/c.jpg"])
    assert [photo.label for photo in find_classes(tmp_path).photos] == ["cats", "cats", "dogs"]


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [("train", "val", "test"), ("Training", "VALID", "testing"), ("TRAIN", "dev", "Eval")],
)
def test_split_folders_give_the_split_of_each_photo(
    tmp_path: Path, train: str, validation: str, test: str
) -> None:
    fill(tmp_path, [f"{train}/a/1.jpg", f"{train}/b/1.jpg", f"{validation}/a/2.jpg"])
    fill(tmp_path, [f"{test}/b/deep/3.jpg", "README.md"])
    folder = find_classes(tmp_path)
    assert folder.split_folders and folder.classes == ("a", "b")
    found = {(photo.split, photo.label) for photo in folder.photos}
    assert found == {("train", "a"), ("train", "b"), ("validation", "a"), ("test", "b")}


def test_photos_without_a_class_are_named(tmp_path: Path) -> None:
    fill(tmp_path, ["train/a/1.jpg", "train/b/1.jpg", "test/1.jpg", "loose.jpg", "train/x.png"])
    folder = find_classes(tmp_path)
    assert folder.split_folders and len(folder.photos) == 2
    assert _faults(folder) == dict.fromkeys(("loose.jpg", "test/1.jpg", "train/x.png"), "no class")


def test_folders_beside_train_and_test_are_named(tmp_path: Path) -> None:
    fill(tmp_path, ["train/a/1.jpg", "train/b/1.jpg", "test/a/2.jpg", "spare/3.jpg"])
    folder = find_classes(tmp_path)
    assert len(folder.photos) == 3 and _faults(folder) == {"spare/3.jpg": "no class"}


def test_class_can_be_called_train(tmp_path: Path) -> None:
    fill(tmp_path, ["train/1.jpg", "plane/1.jpg", "Test/1.jpg"])
    folder = find_classes(tmp_path)
    assert folder.classes == ("plane", "Test", "train") and not folder.split_folders


def test_ambiguous_layout_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, ["train/steam/1.jpg", "train/diesel/1.jpg", "plane/1.jpg"])
    with pytest.raises(InputError, match='"train" looks like a split .* "plane" beside it'):
        find_classes(tmp_path)


def test_split_folders_without_classes_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, ["train/1.jpg", "test/1.jpg"])
    with pytest.raises(InputError, match='"test" and "train" contain no class folders'):
        find_classes(tmp_path)


def test_system_files_are_skipped(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg", "b/1.jpg", "a/._1.jpg", ".hidden/2.jpg", "__MACOSX/a/1.jpg"])
    fill(tmp_path, ["a/Thumbs.db", "a/.DS_Store", "b/desktop.ini", "b/@eaDir/1.jpg"])
    folder = find_classes(tmp_path)
    assert _names(folder) == ["a/1.jpg", "b/1.jpg"]
    assert folder.faults == () and folder.other_files == 0


def test_unsupported_images_and_empty_classes_are_named(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg", "b/1.jpg", "b/phone.HEIC", "c/only.dng"])
    (tmp_path / "empty class").mkdir()
    folder = find_classes(tmp_path)
    assert _faults(folder) == {
        "b/phone.HEIC": "format",
        "c/only.dng": "format",
        "c": "no photos",
        "empty class": "no photos",
    }
    assert folder.faults[0].reason == "HEIC images are not supported: save it as JPEG or PNG"


def test_folders_written_by_clew_are_not_classes(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg", "b/1.jpg", "out/curves.png", "out/last.safetensors"])
    fill(tmp_path, ["patterns/mine/set.json", "patterns/mine/photos/a/1.jpg"])
    fill(tmp_path, ["a/results.json"])  # a user's own
    folder = find_classes(tmp_path)
    assert folder.classes == ("a", "b")
    assert _faults(folder) == {
        "out": "results",
        "patterns/mine": "results",
        "patterns": "no photos",
    }


def test_odd_names_are_kept(tmp_path: Path) -> None:
    names = ["año nuevo/mi foto.jpg", "日本/写真 1.jpg", "🐈 cats/🐾.png", "c/%20&'\"#;.jpg"]
    names += [f"c/{'x' * 240}.jpg", "c/line\nbreak.jpg", " spaces /a. b .jpg"]
    fill(tmp_path, names)
    folder = find_classes(tmp_path)
    assert sorted(_names(folder)) == sorted(names)
    assert all(photo.path.is_file() for photo in folder.photos)


def test_accents_encoded_in_two_ways_are_one_class(tmp_path: Path) -> None:
    composed, split = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    fill(tmp_path, [f"train/{composed}/1.jpg", f"val/{split}/2.jpg", "train/té/1.jpg"])
    folder = find_classes(tmp_path)
    assert folder.classes == (composed, "té")
    assert f"val/{split}/2.jpg" in _names(folder)


def test_names_that_are_not_valid_text_are_named_and_excluded(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg", "b/1.jpg"])
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/caf\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system holds no such names")
    folder = find_classes(tmp_path)
    assert _names(folder) == ["a/1.jpg", "b/1.jpg"] and _faults(folder) == {
        r"a/caf\xe9.jpg": "name"
    }


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    outside = fill(tmp_path / "elsewhere", ["1.jpg", "deep/2.jpg"])
    root = fill(tmp_path / "data", ["b/1.jpg"])
    (root / "a").symlink_to(outside)
    (outside / "deep/back").symlink_to(outside)
    (root / "b/up").symlink_to(root)
    (root / "b/file.jpg").symlink_to(outside / "1.jpg")
    (root / "b/gone.jpg").symlink_to(outside / "gone.jpg")
    (root / "b/self.jpg").symlink_to(root / "b/self.jpg")
    folder = find_classes(root)
    assert _names(folder) == ["a/1.jpg", "a/deep/2.jpg", "b/1.jpg", "b/file.jpg"]
    assert _faults(folder) == {
        "a/deep/back": "link",
        "b/up": "link",
        "b/gone.jpg": "unreadable",
        "b/self.jpg": "unreadable",
    }


def test_pipes_and_sockets_are_not_photos(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg", "b/1.jpg"])
    os.mkfifo(tmp_path / "a/pipe.jpg")
    assert _faults(find_classes(tmp_path)) == {"a/pipe.jpg": "unreadable"}


def test_unreadable_folder_is_named() -> None:
    """As another user if the tests run as root, who may read everything."""
    with tempfile.TemporaryDirectory() as name:
        root = fill(Path(name), ["a/1.jpg", "b/1.jpg", "c/1.jpg"])
        root.chmod(0o755)
        (root / "c").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            folder = find_classes(root)
            assert folder.classes == ("a", "b") and _faults(folder) == {"c": "unreadable"}
            with pytest.raises(InputError, match="cannot be read .Permission denied."):
                find_classes(root / "c")
        finally:
            os.seteuid(user)
            (root / "c").chmod(0o755)


def test_unusable_dataset_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing. cannot be found .No such file.*check the path"):
        find_classes(tmp_path / "missing")
    fill(
        tmp_path, ["file.jpg", "empty/notes.txt", "empty/x/y.txt", "one/cats/1.jpg", "heic/a.heic"]
    )
    with pytest.raises(InputError, match="is a file: give the folder"):
        find_classes(tmp_path / "file.jpg")
    with pytest.raises(InputError, match="contains no photos .* but 2 other files: check the path"):
        find_classes(tmp_path / "empty")
    with pytest.raises(InputError, match='"a.heic" is excluded: HEIC images are not supported'):
        find_classes(tmp_path / "heic")
    with pytest.raises(InputError, match="are not in class folders: put the photos of each class"):
        find_classes(tmp_path / "one/cats")
    with pytest.raises(InputError, match='only one class ."cats".*add a folder with photos'):
        find_classes(tmp_path / "one")


def test_one_class_is_enough_without_training(tmp_path: Path) -> None:
    fill(tmp_path, ["cats/1.jpg"])
    assert find_classes(tmp_path, at_least=1).classes == ("cats",)


def test_error_suggests_subfolder_if_folder_is_one_level_too_high(tmp_path: Path) -> None:
    fill(tmp_path, ["dataset/cats/1.jpg", "dataset/dogs/1.jpg"])
    with pytest.raises(InputError, match='if "cats", "dogs" are the classes, give ".*/dataset"'):
        find_classes(tmp_path)
    fill(tmp_path / "above", ["my zip/dataset/cats/1.jpg", "my zip/dataset/dogs/1.jpg"])
    with pytest.raises(InputError, match='are the classes, give ".*/above/my zip/dataset"'):
        find_classes(tmp_path / "above")


def test_any_photos_can_be_identified(tmp_path: Path) -> None:
    fill(tmp_path, ["b.jpg", "a/deep/c.png", "notes.txt", "x.heic"])
    folder = find_photos(tmp_path)
    assert _names(folder) == ["b.jpg", "a/deep/c.png"] and folder.classes == ()
    assert {photo.label for photo in folder.photos} == {None}
    assert folder.other_files == 1 and _faults(folder) == {"x.heic": "format"}
    with pytest.raises(InputError, match="contains no photos"):
        find_photos(fill(tmp_path / "none", ["a.txt"]))
    with pytest.raises(InputError, match="cannot be found"):
        find_photos(tmp_path / "missing")


def test_one_photo_can_be_identified_whatever_its_suffix(tmp_path: Path) -> None:
    fill(tmp_path, ["photo", "other.jpg"])
    folder = find_photos(tmp_path / "photo")
    assert _names(folder) == ["photo"] and folder.photos[0].path == tmp_path / "photo"


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, ["data/a/1.jpg", "data/b/1.jpg"])
    monkeypatch.chdir(tmp_path)
    folder = find_classes(Path("data"))
    assert folder.root == tmp_path / "data" and folder.photos[0].path == tmp_path / "data/a/1.jpg"
