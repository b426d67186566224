"""Identifying a folder: what is found, what is listed, what is left alone."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clew.base.errors import InputError
from clew.patterns.identification.identify import IdentifyResult, identify_photos
from clew.patterns.identification.results import read_identified
from clew.patterns.settings import IdentifySettings
from clew.patterns.trained.model import PatternModel
from tests.patterns.identification.making import COLORS, draw_doubtful, draw_photo, make_folder


@pytest.fixture
def identify(tmp_path: Path, colors: PatternModel) -> Any:
    def call(photos: Path, **options: Any) -> IdentifyResult:
        options = {"out": tmp_path / "out", **options}
        return identify_photos(IdentifySettings(photos, model=colors, **options))

    return call


@pytest.mark.slow
def test_every_photo_gets_its_class_and_bad_ones_are_listed(tmp_path: Path, identify: Any) -> None:
    result = identify(make_folder(tmp_path / "fotos ñ 📷"))
    assert result.counts == {
        "photos": 13,
        "identified": 10,
        "doubtful": 0,
        "unknown": 0,
        "faulty": 3,
    }
    assert dict(result.class_counts) == {"azul ñ": 3, "green": 3, "red": 4}
    photos = {photo.name: photo for photo in read_identified(result.list_file).photos}
    assert photos["día 0 ✋/foto 0 <b>&amp;.png"].best[0][0] == "azul ñ"
    assert photos["empty.jpg"].fault is not None and photos["empty.jpg"].fault.kind == "empty"
    assert {name for name, photo in photos.items() if photo.fault} == {
        "empty.jpg",
        "text.png",
        "cut.jpg",
    }
    assert all(photo.path.is_file() for photo in photos.values())


def test_lists_hold_settings_classes_and_probabilities(tmp_path: Path, identify: Any) -> None:
    photos = make_folder(tmp_path / "photos")
    result = identify(photos, top_k=2, threshold=0.55)
    content = json.loads(result.list_file.read_text(encoding="utf-8"))
    assert content["settings"]["folder"] == str(photos)
    assert (content["settings"]["threshold"], content["settings"]["top_k"]) == (0.55, 2)
    assert content["settings"]["classes"] == list(COLORS)
    assert content["counts"] == result.counts
    whole = next(photo for photo in content["photos"] if photo["name"] == "whole.jpg")
    assert [guess["class"] for guess in whole["best"]][0] == "red" and len(whole["best"]) == 2
    with (result.folder / "identified.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert len(rows) == 13 and rows["whole.jpg"]["class"] == "red"
    assert rows["whole.jpg"]["doubtful"] == "no" and rows["empty.jpg"]["fault"]


def test_photos_below_the_threshold_are_doubtful_and_come_first(
    tmp_path: Path, identify: Any
) -> None:
    draw_photo(tmp_path / "photos" / "sure.png", "green")
    draw_doubtful(tmp_path / "photos" / "mixed.png")
    chance = min(photo.best[0][1] for photo in _photos(identify(tmp_path / "photos")))
    result = identify(tmp_path / "photos", threshold=(chance + 1) / 2)
    assert result.counts["doubtful"] >= 1
    first = min(_photos(result), key=lambda photo: photo.best[0][1])
    assert first.doubtful and result.doubtful[0] == first
    assert not any(photo.doubtful for photo in _photos(identify(tmp_path / "photos", threshold=0)))


def test_all_photos_may_be_doubtful(tmp_path: Path, identify: Any) -> None:
    draw_doubtful(tmp_path / "a.png")
    result = identify(tmp_path / "a.png", threshold=1.0)
    assert result.counts["identified"] == 0 and result.counts["doubtful"] == 1


def test_folder_of_only_unreadable_files_gives_a_result(tmp_path: Path, identify: Any) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    result = identify(tmp_path / "photos")
    assert result.counts["faulty"] == 1 and result.sheets == ()
    assert "The photo cannot be read" in result.page.read_text(encoding="utf-8")


def test_empty_folder_is_refused(tmp_path: Path, identify: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no photos"):
        identify(tmp_path / "empty")
    assert not (tmp_path / "out").exists()


def test_results_among_the_photos_are_not_identified_again(tmp_path: Path, identify: Any) -> None:
    photos = make_folder(tmp_path / "photos")
    places = {"out": photos / "results", "copy_to": photos / "sorted"}
    first = identify(photos, **places)
    again = identify(photos, **places)
    assert again.counts == first.counts
    assert any("`copy_to`" in note for note in again.notes)
    with pytest.raises(InputError, match="is the photo folder itself"):
        identify(photos, out=photos)


@pytest.mark.slow
def test_results_are_replaced_but_other_files_are_not(tmp_path: Path, identify: Any) -> None:
    photos = make_folder(tmp_path / "photos")
    identify(photos)
    result = identify(photos)
    for name in ("identified.json", "identified.html", "identified.csv", "contact_sheet.jpg"):
        kept = (result.folder / name).read_bytes()
        (result.folder / name).write_bytes(b"mine")
        with pytest.raises(InputError, match="was not written by"):
            identify(photos)
        assert (result.folder / name).read_bytes() == b"mine"
        (result.folder / name).write_bytes(kept)


def test_failed_run_keeps_the_earlier_results(
    tmp_path: Path, identify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(tmp_path / "photos")
    before = identify(photos).list_file.read_bytes()
    monkeypatch.setattr(PatternModel, "outputs", _fail)
    with pytest.raises(KeyboardInterrupt):
        identify(photos)
    assert (tmp_path / "out" / "identified.json").read_bytes() == before
    assert not list((tmp_path / "out").glob("*.tmp"))


@pytest.mark.slow
def test_photos_without_thumbnails_are_mentioned(tmp_path: Path, identify: Any) -> None:
    for number in range(90):
        draw_photo(tmp_path / "photos" / f"{number}.png", list(COLORS)[number % 3], seed=number)
    result = identify(tmp_path / "photos", thumbnails=70)
    page = result.page.read_text(encoding="utf-8")
    assert page.count("<figure") == 70
    [note] = result.notes
    assert note.startswith("Thumbnails show 70 of 90 photos") and note.replace("`", "") in page
    assert [sheet.name for sheet in result.sheets] == ["contact_sheet.jpg", "contact_sheet_2.jpg"]
    fewer = identify(tmp_path / "photos", thumbnails=5)
    assert len(fewer.sheets) == 1 and not (result.folder / "contact_sheet_2.jpg").exists()
    with Image.open(fewer.sheets[0]) as sheet:
        sheet.load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k is 0: it must be 1 or more"),
        ({"threshold": 60}, "threshold is 60: it must be a probability from 0 to 1"),
        ({"thumbnails": -1}, "thumbnails is -1: it must be 0 or more"),
    ],
)
def test_invalid_settings_are_refused(
    tmp_path: Path, identify: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        identify(tmp_path, **options)


def _photos(result: IdentifyResult) -> Any:
    return read_identified(result.list_file).photos


def _fail(*_: object) -> None:
    raise KeyboardInterrupt
