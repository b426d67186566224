"""Splits of photos: the folders decide, or a hash of the image; every class is in every split."""

from collections import Counter
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.loading.splits import Shares
from clew.patterns.photos import Photo, assign_splits, group_copies


def _photos(counts: dict[str, int], split: str | None = None) -> list[Photo]:
    return [
        Photo(path=Path(f"/{label}/{n}.jpg"), name=f"{label}/{n}.jpg", label=label, split=split)
        for label, count in counts.items()
        for n in range(count)
    ]


def _keys(photos: list[Photo]) -> list[str]:
    return [f"digest of {photo.split} {photo.name}" for photo in photos]


def _count(photos: list[Photo], splits: list[str]) -> Counter:
    return Counter((photo.label, split) for photo, split in zip(photos, splits, strict=True))


def test_every_class_is_split_by_its_shares() -> None:
    photos = _photos({"a": 100, "b": 10, "c": 3})
    counts = _count(photos, assign_splits(photos, _keys(photos)))
    for label, numbers in {"a": (70, 10, 20), "b": (7, 1, 2), "c": (1, 1, 1)}.items():
        found = tuple(counts[label, split] for split in ("train", "validation", "test"))
        assert found == numbers


def test_shares_can_be_changed_and_a_split_omitted() -> None:
    photos = _photos({"a": 50, "b": 2})
    shares = Shares(train=0.8, validation=0.2, test=0)
    counts = _count(photos, assign_splits(photos, _keys(photos), shares=shares))
    assert counts == {
        ("a", "train"): 40,
        ("a", "validation"): 10,
        ("b", "train"): 1,
        ("b", "validation"): 1,
    }


def test_split_follows_the_image_not_its_name_or_position() -> None:
    photos = _photos({"a": 40, "b": 40})
    keys = _keys(photos)
    splits = dict(zip(keys, assign_splits(photos, keys), strict=True))
    renamed = [
        Photo(path=photo.path, name=f"new {photo.name}", label=photo.label, split=None)
        for photo in reversed(photos)
    ]
    assert assign_splits(renamed, keys[::-1]) == [splits[key] for key in keys[::-1]]


def test_near_duplicates_of_a_class_are_in_one_split() -> None:
    photos = _photos({"a": 60, "b": 60})
    keys, pairs = _keys(photos), [(first, first + 1) for first in range(0, 60, 3)]
    splits = assign_splits(photos, group_copies(photos, keys, pairs))
    assert all(splits[one] == splits[other] for one, other in pairs)
    assert {*splits} == {"train", "validation", "test"}
    across = [(0, 60)]  # one label is wrong, and nobody knows which
    assert group_copies(photos, keys, across) == keys


def test_near_duplicates_join_the_split_of_a_known_photo() -> None:
    photos = _photos({"a": 20, "b": 20})
    keys = _keys(photos)
    known = {keys[7]: "test", keys[8]: "train"}
    splits = assign_splits(photos, group_copies(photos, keys, [(3, 7)], known), known=known)
    assert (splits[3], splits[7], splits[8]) == ("test", "test", "train")


def test_a_class_of_copies_is_split_all_the_same() -> None:
    photos = _photos({"a": 4, "b": 4})
    keys = _keys(photos)
    assert group_copies(photos, keys, [(0, 1), (1, 2), (2, 3)]) == keys


def test_known_photos_stay_when_others_are_added() -> None:
    few, many = _photos({"a": 30, "b": 30}), _photos({"a": 60, "b": 33})
    known = dict(zip(_keys(few), assign_splits(few, _keys(few)), strict=True))
    later = dict(zip(_keys(many), assign_splits(many, _keys(many), known=known), strict=True))
    assert {key: later[key] for key in known} == known
    counts = _count(many, list(later.values()))
    assert (counts["a", "train"], counts["a", "validation"], counts["a", "test"]) == (42, 6, 12)


def test_adding_photos_moves_few_others_without_an_earlier_run() -> None:
    few, many = _photos({"a": 200, "b": 200}), _photos({"a": 260, "b": 200})
    before = dict(zip(_keys(few), assign_splits(few, _keys(few)), strict=True))
    after = dict(zip(_keys(many), assign_splits(many, _keys(many)), strict=True))
    assert sum(before[key] != after[key] for key in before) < 25


def test_new_photos_fill_empty_splits_first() -> None:
    photos = _photos({"a": 10, "b": 10})
    keys = _keys(photos)
    known = {key: "train" for key, photo in zip(keys, photos, strict=True) if photo.label == "a"}
    for key in keys[8:10]:
        del known[key]
    counts = _count(photos, assign_splits(photos, keys, known=known))
    assert (counts["a", "validation"], counts["a", "test"]) == (1, 1)


def test_single_new_photo_goes_to_training_if_training_is_empty() -> None:
    photos = _photos({"a": 3, "b": 6})
    keys = _keys(photos)
    known = {keys[0]: "test", keys[1]: "test"}
    assert assign_splits(photos, keys, known=known)[:3] == ["test", "test", "train"]


@pytest.mark.parametrize(
    ("split", "lacking"),
    [
        ("train", "none for validation and test: add"),
        ("test", 'none for training of "a", "b": add'),
    ],
)
def test_known_photos_that_leave_a_split_empty_are_reported(split: str, lacking: str) -> None:
    photos = _photos({"a": 5, "b": 5})
    known = dict.fromkeys(_keys(photos), split)
    with pytest.raises(InputError, match=lacking):
        assign_splits(photos, _keys(photos), known=known)


def test_identical_images_share_a_split() -> None:
    photos = _photos({"a": 20, "b": 20})
    keys = [f"{photo.label}{n % 10}" for n, photo in enumerate(photos)]
    splits = assign_splits(photos, keys)
    assert len(set(zip(keys, splits, strict=True))) == len(set(keys))


def test_folders_take_precedence() -> None:
    photos = [photo for split in ("train", "validation", "test") for photo in
              _photos({"a": 4, "b": 4}, split)]  # fmt: skip
    keys = _keys(photos)
    known = dict.fromkeys(keys, "train")
    assert assign_splits(photos, keys, known=known) == [photo.split for photo in photos]


def test_photo_moved_from_test_to_training_is_not_tested_on() -> None:
    photos = _photos({"a": 9, "b": 9}, "train") + _photos({"a": 4, "b": 4}, "test")
    keys = _keys(photos)
    splits = assign_splits(photos, keys, known=dict.fromkeys(keys, "test"))
    assert {*splits[:18]} == {"train", "validation"} and {*splits[18:]} == {"test"}


@pytest.mark.parametrize(
    ("folders", "train", "taken"),
    [
        (["train"], 63, {"validation": 9, "test": 18}),
        (["train", "test"], 79, {"validation": 11}),
        (["train", "validation"], 70, {"test": 20}),
    ],
)
def test_split_without_a_folder_is_drawn_from_training_photos(
    folders: list[str], train: int, taken: dict[str, int]
) -> None:
    photos = [photo for split in folders for photo in _photos({"a": 90, "b": 90}, split)]
    counts = _count(photos, assign_splits(photos, _keys(photos)))
    assert counts["a", "train"] == train
    assert {split: counts["a", split] for split in taken} == taken


def test_class_may_be_missing_in_a_test_folder() -> None:
    photos = _photos({"a": 5, "b": 5}, "train") + _photos({"a": 2}, "test")
    counts = _count(photos, assign_splits(photos, _keys(photos)))
    assert counts["a", "test"] == 2 and counts["b", "test"] == 0 and counts["b", "validation"] == 1


def test_classes_with_too_few_photos_are_all_named() -> None:
    photos = _photos({"10": 1, "2": 2, "fine": 3})
    with pytest.raises(InputError) as caught:
        assign_splits(photos, _keys(photos))
    assert str(caught.value) == (
        'classes with too few distinct photos: "2" (2), "10" (1). Each class requires at least 3, '
        "one for train and one for validation and one for test: add photos, or remove the folder."
    )


def test_copies_do_not_count_twice() -> None:
    photos = _photos({"a": 5, "b": 5})
    with pytest.raises(InputError, match=r'too few distinct photos: "a" \(1\), "b" \(1\)'):
        assign_splits(photos, [photo.label or "" for photo in photos])


def test_classes_without_training_photos_are_named() -> None:
    photos = _photos({"a": 5}, "train") + _photos({"a": 2, "b": 2}, "test")
    with pytest.raises(InputError, match=r'too few .*"b" \(0\)'):
        assign_splits(photos, _keys(photos))


def test_two_classes_and_training_photos_are_required() -> None:
    photos = _photos({"a": 5})
    with pytest.raises(InputError, match='only one class ."a".*at least two classes'):
        assign_splits(photos, _keys(photos))
    with pytest.raises(InputError, match="no usable photo"):
        assign_splits([], [])
    photos = _photos({"a": 5, "b": 5}, "test")
    with pytest.raises(InputError, match="folders for test but none for training"):
        assign_splits(photos, _keys(photos))
    with pytest.raises(InputError, match="0/50/50 leaves no photos for training"):
        photos = _photos({"a": 5, "b": 5})
        assign_splits(photos, _keys(photos), shares=Shares(train=0, validation=0.5, test=0.5))
