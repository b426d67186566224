"""Photos of none of the classes: in the lists, on the page, and among the copies."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.identification.identify import class_folder, identify_photos
from clew.patterns.identification.recognize import recognize_photo
from clew.patterns.identification.results import read_identified
from clew.patterns.settings import IdentifySettings
from clew.patterns.trained.model import PatternModel
from tests.patterns.identification.making import draw_noise, draw_photo, draw_small, with_unknown


@pytest.fixture(scope="module")
def knowing(colors: PatternModel) -> PatternModel:
    return with_unknown(colors)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw_photo(tmp_path / "photos" / "green.png", "green")
    return draw_noise(tmp_path / "photos" / "noise.png").parent


def test_a_photo_of_none_of_the_classes_is_listed_as_unknown(
    photos: Path, knowing: PatternModel, tmp_path: Path
) -> None:
    config = IdentifySettings(
        photos=photos, model=knowing, out=tmp_path / "out", copy_to=tmp_path / "sorted"
    )
    result = identify_photos(config)
    assert result.counts["unknown"] == 1 and result.counts["identified"] == 1
    [green, noise] = read_identified(result.list_file).photos
    assert noise.unknown and noise.doubtful and not green.unknown
    assert noise.typicality is not None and noise.typicality < 0.05
    page = result.page.read_text(encoding="utf-8")
    assert "1 of 2 photos identified, 1 doubtful and unknown" in page and 'id="unknown"' in page
    assert (tmp_path / "sorted" / "_unknown" / "noise.png").exists()
    with (result.folder / "identified.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [row["unknown"] for row in csv.DictReader(file)] == ["no", "yes"]


def test_no_photo_is_unknown_if_that_is_turned_off(
    photos: Path, knowing: PatternModel, tmp_path: Path
) -> None:
    config = IdentifySettings(photos=photos, model=knowing, out=tmp_path / "out", unknown=0)
    assert identify_photos(config).counts["unknown"] == 0
    with pytest.raises(InputError, match="less than 1"):
        replace(config, unknown=1)


def test_recognize_says_unknown(photos: Path, knowing: PatternModel, colors: PatternModel) -> None:
    noise = photos / "noise.png"
    assert recognize_photo(knowing, noise).is_unknown
    assert recognize_photo(knowing, noise).to_record()["unknown"] is True
    assert not recognize_photo(knowing, photos / "green.png").is_unknown
    assert not recognize_photo(colors, noise).is_unknown


def test_a_small_object_is_known_where_it_is_found(knowing: PatternModel, tmp_path: Path) -> None:
    path = draw_small(tmp_path / "a.png", "red", box=(100, 50, 300, 250))
    whole = recognize_photo(knowing, path)
    parts = recognize_photo(knowing, path, multiscale=True)
    assert parts.typicality is not None and whole.typicality is not None
    assert parts.typicality >= whole.typicality


def test_a_class_named_like_the_folder_of_unknown_photos_keeps_its_own() -> None:
    assert class_folder("_unknown") == "_unknown_"
