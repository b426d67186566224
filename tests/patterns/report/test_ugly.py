"""Hostile names, missing parts, damaged folders."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.base.errors import StoreError
from clew.patterns.report.page import write_report
from tests.patterns.report.making import change_results, make_run
from tests.patterns.report.test_report import read_page

EVIL = "<script>alert(1)<∕script><img src=x onerror=alert(1)>'\"><svg onload=alert(1)>"


@pytest.mark.slow
def test_names_never_become_markup(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out", classes=(EVIL, "مرحبا", "👩‍👩‍👧"))
    change_results(folder, network=EVIL, versions={EVIL: EVIL}, started_from=EVIL)
    page = read_page(folder)
    assert page.count("script") == 1
    images = [attributes for name, attributes in page.elements if name == "img"]
    assert images and all((one["src"] or "").startswith("data:") for one in images)
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert EVIL in page.text and "مرحبا" in page.text and "👩‍👩‍👧" in page.text


@pytest.mark.slow
def test_file_name_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    name = os.fsdecode(b"cat/caf\xe9.png")
    photos = tmp_path / "photos"
    (photos / "cat" / "ñandú 1 🙂.png").rename(photos / name)
    table = (folder / "predictions.csv").read_bytes()
    table = table.replace("cat/ñandú 1 🙂.png".encode(), os.fsencode(name))
    (folder / "predictions.csv").write_bytes(table)
    page = read_page(folder)
    assert "cat/caf\N{REPLACEMENT CHARACTER}.png" in page.text
    assert page.section("mistakes").count("<img") == 15


@pytest.mark.slow
def test_missing_photos_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    shutil.rmtree(tmp_path / "photos" / "dog")
    (tmp_path / "photos" / "cat" / "ñandú 0 🙂.png").write_text("no picture any more")
    page = read_page(folder)
    count = page.section("mistakes").count("the photo was moved or is damaged")
    assert count == 2 and page.section("mistakes").count("<article") == 5


def test_without_the_model_only_heat_maps_are_missing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    (folder / "best.safetensors").unlink()
    page = read_page(folder)
    assert page.section("mistakes").count("<img") == 5
    assert "There are no heat maps: there is no" in page.section("evidence")


@pytest.mark.slow
def test_report_works_for_all_correct_all_wrong_and_one_epoch(tmp_path: Path) -> None:
    page = read_page(make_run(tmp_path / "a" / "out", test=1, wrong=0, epochs=1, excluded=0))
    assert "Every test photo was classified correctly." in page.text
    assert "There are no mistakes in any class." in page.text
    assert "Every photo that was found was used." in page.text
    page = read_page(make_run(tmp_path / "b" / "out", test=1, wrong=4))
    assert "0 of 4 test photos in 4 classes are classified correctly (0.0%)." in page.text
    assert "No test photo was classified correctly." in page.text


def test_missing_parts_are_explained_or_shown_as_dash(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    for name in ("predictions.csv", "excluded.csv", "log.csv"):
        (folder / name).unlink()
    path = folder / "results.json"
    path.write_text(json.dumps({"classes": ["cat", "dog"], "per_class": [{"class": "cat"}]}))
    page = read_page(folder)
    assert "The test accuracy is unknown." in page.text
    assert "There is no confusion matrix" in page.text
    assert "predictions.csv is missing" in page.text
    assert page.section("classes").count("\N{EN DASH}") == 6


def test_files_excluded_by_an_earlier_version_are_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    (folder / "excluded.csv").rename(folder / "left_out.csv")
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["data"]
    change_results(folder, data={"left_out": data.pop("excluded"), **data})
    section = read_page(folder).section("excluded")
    assert "image file is truncated" in section and "2 files could not be used" in section


def remove_results(folder: Path) -> None:
    (folder / "results.json").unlink()


def damage_results(folder: Path) -> None:
    (folder / "results.json").write_text("{", encoding="utf-8")


def results_of_something_else(folder: Path) -> None:
    (folder / "results.json").write_text('{"runs": []}', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_results, r'There is no "results.json" in .* requires a finished training'),
        (damage_results, r'results.json" cannot be read'),
        (
            results_of_something_else,
            r"lists no classes, so it was not written by a photo classifier",
        ),
    ],
)
def test_damaged_folder_is_refused_with_what_to_do(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = make_run(tmp_path / "out")
    damage(folder)
    with pytest.raises(StoreError, match=message) as refused:
        write_report(folder)
    assert 'Run "clew patterns train"' in str(refused.value)
    assert not (folder / "report.html").exists()
