"""The page of a training: its text, its figures, and that it is self-contained."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from clew.patterns.report.page import write_report
from clew.patterns.trained.tables import MapRow, write_map
from tests.pages.reading import Page
from tests.patterns.report.making import change_results, make_run


def read_page(folder: Path) -> Page:
    return Page(write_report(folder, device="cpu").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "out")


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return read_page(folder)


def test_headline_has_the_accuracy_and_its_interval(page: Page) -> None:
    assert "19 of 24 test photos in 4 classes are classified correctly (79.2%)." in page.text
    assert "expect between 69.2% and 84.2% (95% confidence interval)" in page.text
    assert "wide because there are only 24 test photos" in page.text
    assert 'Hardest class: "cat", with a recall of 66.7% on 6 test photos.' in page.text
    assert 'Most frequent mistake: "cat" predicted as "dog", 2 photos.' in page.text


def test_every_class_has_a_row_with_sortable_numbers(page: Page) -> None:
    classes = page.section("classes")
    assert classes.count("<tr>") == 1 + 4 and 'data-value="0.666667"' in classes
    assert all(f"<bdi>{name}</bdi>" in classes for name in ("cat", "dog", "2", "10"))


def test_matrix_has_every_photo_and_explains_its_cells(page: Page) -> None:
    confusion = page.section("confusion")
    numbers = re.findall(r'class="cell middle[^>]*>([\d,]+)<', confusion)
    assert sum(map(int, numbers)) == 24
    assert "&quot;cat&quot; predicted as &quot;dog&quot;: 2 of 6 (33%)" in confusion


def test_mistakes_are_sorted_by_confidence_with_two_heat_maps_each(page: Page) -> None:
    mistakes = page.section("mistakes")
    assert mistakes.count("<article") == 5 and mistakes.count("<img") == 5 * 3
    sure = [float(text) for text in re.findall(r'class="sure">([\d.]+)%', mistakes)]
    assert sure == sorted(sure, reverse=True)
    assert "ñandú 0 🙂.png" in mistakes


def test_every_class_has_correct_predictions_with_their_evidence(page: Page) -> None:
    evidence = page.section("evidence")
    assert evidence.count("<article") == 8 and evidence.count("<img") == 8 * 2


def test_page_shows_curves_confidence_excluded_files_and_settings(page: Page) -> None:
    assert page.section("training").count('class="panel"') == 3
    assert "epoch 6 was kept" in page.section("training")
    assert "no GPU was found" in page.section("training")
    assert page.section("confidence").count('class="panel"') == 2
    assert "At the default threshold of 0.6 in &quot;clew patterns identify&quot;, 83.3%" in (
        page.section("confidence")
    )
    assert "image file is truncated" in page.section("excluded")
    assert "2 files could not be used" in page.section("excluded")
    assert "mixup" in page.section("settings") and "torch" in page.section("settings")


def test_page_loads_nothing_from_elsewhere(page: Page) -> None:
    sources = [attributes.get("src") or "" for _, attributes in page.elements]
    assert all(source.startswith("data:image/jpeg;") for source in sources if source)
    outside = r"""(?:src|href)=["'](?!data:|#)|url\(|@import|https?://"""
    assert not re.search(outside, page.markup)


@pytest.mark.slow
def test_long_lists_are_truncated_with_a_note(tmp_path: Path) -> None:
    classes = [f"class {n}" for n in range(60)]
    folder = make_run(tmp_path / "out", classes=classes, test=2, wrong=61, excluded=300)
    page = read_page(folder)
    assert page.section("mistakes").count("<article") == 60
    assert "60 of 61 mistakes are shown, the most confident first" in page.text
    assert page.section("evidence").count("<article") == 48
    assert "11 more classes would make the page slow to open" in page.text
    assert "100 more files: excluded.csv beside this page has all of them." in page.text
    whole = page.section("confusion").split("All classes")[1]
    assert 'class="cell middle' not in whole, "no room for numbers"


@pytest.mark.slow
def test_too_many_classes_are_cut_to_those_with_mistakes(tmp_path: Path) -> None:
    classes = [f"class {n}" for n in range(130)]
    folder = make_run(tmp_path / "out", classes=classes, test=1, wrong=3)
    page = read_page(folder)
    assert "The 120 of 130 classes with the most mistakes are shown" in page.text
    assert len(page.markup) < 3_000_000


@pytest.mark.slow
def test_evaluation_names_its_model(tmp_path: Path) -> None:
    trained = make_run(tmp_path / "out")
    folder = tmp_path / "evaluated"
    folder.mkdir()
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    for name in ("plan", "train", "augment", "loss", "best_epoch", "epochs_run"):
        del results[name]
    for row in results["per_class"]:
        del row["train"], row["validation"]
    results |= {"model": str(trained), "trained_test_accuracy": 0.91}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "predictions.csv").write_bytes((trained / "predictions.csv").read_bytes())
    page = read_page(folder)
    assert "On the test photos of its own training run, its accuracy was 91.0%" in page.text
    assert "nothing was trained here" in page.text and 'id="training"' not in page.markup
    assert page.section("mistakes").count("<img") == 15, "the heat maps of the model it tried"
    assert "validation</button>" not in page.section("classes")


@pytest.mark.slow
def test_settings_in_reasons_are_shown_as_code(tmp_path: Path) -> None:
    page = read_page(make_run(tmp_path / "out"))
    assert "<td>asked for: <code>batch_size</code></td>" in page.section("training")


@pytest.mark.slow
def test_report_of_a_set_shows_the_name_of_the_set(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "my animals" / "out")
    assert "<title>clew: photo classifier for photos</title>" in read_page(folder).markup
    (tmp_path / "my animals" / "set.json").touch()
    assert "<title>clew: photo classifier for my animals</title>" in read_page(folder).markup


@pytest.mark.slow
def test_optimistic_accuracy_is_marked_as_such(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    assert "this accuracy is too optimistic" not in read_page(folder).text
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["data"]
    change_results(folder, data=data | {"test_learnt_before": 2})
    sentence = "This run started from weights that were trained on 2 test photos"
    assert sentence in read_page(folder).text


@pytest.mark.slow
def test_accuracy_on_training_photos_is_marked_as_such(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["data"]
    change_results(folder, data=data | {"all_seen": True})
    page = read_page(folder)
    assert "was trained or validated on all of these photos" in page.text
    assert "the model was not trained on" not in page.text


def test_classes_without_photos_in_a_split_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["per_class"]
    rows[1]["validation"] = rows[3]["validation"] = rows[2]["test"] = 0
    change_results(folder, per_class=rows)
    page = read_page(folder)
    assert "2 classes have no validation photos: dog, 10." in page.text
    assert "No validation photos (the best epoch was selected without them): dog, 10." in page.text
    assert "No test photos (their recall is unknown): 2." in page.text


@pytest.mark.slow
def test_many_classes_are_grouped_by_confusion_with_readable_names(tmp_path: Path) -> None:
    classes = [f"class {number}" for number in range(81)]
    folder = make_run(tmp_path / "out", classes=classes, test=1)
    confusion = np.diag([20] * 81)
    confusion[3, 70], confusion[70, 40], confusion[5, 6] = 4, 3, 1
    change_results(folder, confusion=confusion.tolist())
    part = read_page(folder).section("confusion")
    groups, whole = part.split("All classes")
    assert "7 mistakes among 3 classes" in groups and groups.count("<svg") == 1
    names = re.findall(r'class="name row end"[^>]*>([^<]+)<', whole)
    assert len(names) == 81 and set(names[:3]) == {"class 3", "class 40", "class 70"}
    sizes = [float(size) for size in re.findall(r'class="name [^>]*font-size:([\d.]+)px', whole)]
    assert min(sizes) >= 10


def test_unknown_photos_are_measured_by_holding_classes_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out", test=2)
    rows = [
        {"class": "cat", "photos": 2, "auroc": 0.98, "found": 1.0},
        {"class": "dog", "photos": 2, "auroc": 0.91, "found": 0.5},
    ]
    found = {"auroc": 0.945, "test_marked": 0.04, "validation_photos": 24}
    change_results(folder, unknown={**found, "held_out_classes": rows})
    section = read_page(folder).section("unknown")
    assert "with an AUROC of 0.945." in section and "calibrated on 24 validation photos" in section
    assert section.index("<bdi>dog</bdi>") < section.index("<bdi>cat</bdi>")


def test_the_map_shows_photos_by_class_mistake_and_split(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out", test=2)
    place = {"label": "cat", "split": "test", "x": 0.5, "y": 0.25}
    rows = [
        MapRow(name="</script>.png", predicted="cat", **place),
        MapRow(name="b.png", predicted="dog", **place),
    ]
    write_map(folder, rows, b"")
    section = read_page(folder).section("map")
    assert "2 of 208 photos" in section and "</script>.png" not in section
    [text] = re.findall(r'class="map-data">(.*?)</script>', section)
    colorings = {one["name"]: one["of"] for one in json.loads(text)["colorings"]}
    assert colorings == {"class": [0, 0], "prediction": [0, 1], "split": [2, 2]}


def test_a_run_of_an_earlier_version_says_why_it_has_no_map(page: Page) -> None:
    assert "There is no map: map.csv is missing" in page.text
    assert "This run says nothing about photos of none of the classes" in page.text
