"""A model's predictions for many photos, in order, good and bad."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.patterns.photos import Photo, find_classes, find_photos
from clew.patterns.trained.model import load_classifier, predict_photos
from clew.patterns.trained.tables import read_splits
from tests.patterns.training.making import write_photo

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (5, 3), (64, 0)])
def test_every_photo_is_predicted_in_order(
    trained: Path, photos: Path, batch_size: int, workers: int
) -> None:
    model, folder = load_classifier(trained, "cpu"), find_classes(photos)
    found = list(predict_photos(model, folder.photos, batch_size=batch_size, workers=workers))
    assert [one.photo for one in found] == list(folder.photos)
    assert all(one.fault is None and len(one.top_k(2)) == 2 for one in found)
    right = sum(one.label == one.photo.label for one in found)
    assert right / len(found) > 0.8
    assert {one.digest for one in found} == {row.digest for row in read_splits(trained)}


def test_photos_known_by_their_digest_are_only_read(trained: Path, photos: Path) -> None:
    model, some = load_classifier(trained, "cpu"), find_classes(photos).photos[:6]
    every = list(predict_photos(model, some))
    known = {one.digest for one in every[::2] if one.digest}
    found = list(predict_photos(model, some, besides=known))
    assert [one.digest for one in found] == [one.digest for one in every]
    assert [one.label for one in found] == [
        None if one.digest in known else one.label for one in every
    ]


def test_most_likely_classes_come_first(trained: Path, photos: Path) -> None:
    model = load_classifier(trained, "cpu")
    [one] = predict_photos(model, find_photos(photos / "azul" / "photo 1.png").photos)
    names, shares = zip(*one.top_k(10), strict=True)
    assert sorted(names) == sorted(model.classes)
    assert list(shares) == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)


def test_bad_photos_do_not_stop_the_others(trained: Path, tmp_path: Path) -> None:
    write_photo(tmp_path / "1.png", "azul", 900)
    (tmp_path / "2.png").write_text("no picture")
    os.symlink(tmp_path / "gone", tmp_path / "3.png")
    write_photo(tmp_path / "4.png", "red 🍎", 901)
    named = [
        Photo(path=tmp_path / f"{number}.png", name=f"{number}.png", label=None, split=None)
        for number in range(1, 5)
    ]
    found = list(predict_photos(load_classifier(trained, "cpu"), named, batch_size=3))
    assert [one.fault.kind if one.fault else None for one in found] == [
        *(None, "not an image", "unreadable", None)
    ]
    assert [one.probabilities is None for one in found] == [False, True, True, False]
    assert found[1].top_k(3) == [] and found[1].digest is None


def test_classifier_predicts_a_photo_a_folder_and_several(trained: Path, photos: Path) -> None:
    model = load_classifier(trained, "cpu")
    [one] = model.predict(photos / "azul" / "photo 1.png")
    assert (one.label, one.confidence) == one.top_k(3)[0] and len(one.top_k(2)) == 2
    folder = model.predict(str(photos / "azul"))
    assert [str(found.photo.path.parent) for found in folder] == [str(photos / "azul")] * len(
        folder
    )
    again = model.predict([photos / "azul" / "photo 1.png", photos / "azul"])
    assert [found.digest for found in again] == [one.digest, *(found.digest for found in folder)]
    assert repr(model).startswith(f"PatternModel({str(trained)!r}: 3 classes, ")


def test_no_photos_give_no_predictions(trained: Path) -> None:
    assert list(predict_photos(load_classifier(trained, "cpu"), [])) == []


def test_photos_are_read_on_demand(trained: Path, photos: Path) -> None:
    """However many there are: stopping early reads few."""
    asked = 0
    path = photos / "azul" / "photo 1.png"

    def endless() -> Iterator[Photo]:
        nonlocal asked
        while True:
            asked += 1
            yield Photo(path=path, name=str(asked), label=None, split=None)

    predictions = predict_photos(load_classifier(trained, "cpu"), endless(), batch_size=2)
    assert [next(predictions).photo.name for _ in range(5)] == ["1", "2", "3", "4", "5"]
    predictions.close()  # type: ignore[attr-defined]
    assert asked < 20
