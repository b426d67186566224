"""The page of a training: what it tells, what it shows, and that it needs nothing but itself."""

import json
import re
from pathlib import Path

import pytest

from clew.patterns.report import write_report
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


def test_the_headline_says_how_well_and_how_sure(page: Page) -> None:
    assert "79.2% of the test photos are recognised: 19 of 24, 4 classes." in page.text
    assert "expect between 69.2% and 84.2% (95% interval)" in page.text
    assert "wide because there are only 24 test photos" in page.text
    assert 'Hardest class: "cat", of which 66.7% of 6 test photos are recognised.' in page.text
    assert 'Most frequent mistake: "cat" taken for "dog", 2 photos.' in page.text


def test_every_class_has_its_row_with_numbers_to_sort_by(page: Page) -> None:
    classes = page.section("classes")
    assert classes.count("<tr>") == 1 + 4 and 'data-value="0.666667"' in classes
    assert all(f"<bdi>{name}</bdi>" in classes for name in ("cat", "dog", "2", "10"))


def test_the_matrix_has_every_photo_and_tells_cells_in_words(page: Page) -> None:
    confusion = page.section("confusion")
    numbers = re.findall(r'class="cell middle[^>]*>([\d,]+)<', confusion)
    assert sum(map(int, numbers)) == 24
    assert "&quot;cat&quot; taken for &quot;dog&quot;: 2 of 6 (33%)" in confusion


def test_mistakes_stand_the_surest_first_with_two_heat_maps_each(page: Page) -> None:
    mistakes = page.section("mistakes")
    assert mistakes.count("<article") == 5 and mistakes.count("<img") == 5 * 3
    sure = [float(text) for text in re.findall(r'class="sure">([\d.]+)%', mistakes)]
    assert sure == sorted(sure, reverse=True)
    assert "ñandú 0 🙂.png" in mistakes


def test_every_class_has_right_ones_with_what_it_looked_at(page: Page) -> None:
    right = page.section("right")
    assert right.count("<article") == 8 and right.count("<img") == 8 * 2


def test_curves_sureness_what_was_excluded_and_settings_are_there(page: Page) -> None:
    assert page.section("training").count('class="panel"') == 3
    assert "epoch 6 was kept" in page.section("training")
    assert "no GPU was found" in page.section("training")
    assert page.section("sureness").count('class="panel"') == 2
    assert "With a threshold of 0.6 in &quot;clew patterns identify&quot;, 83.3%" in page.section(
        "sureness"
    )
    assert "image file is truncated" in page.section("excluded")
    assert "2 files took no part" in page.section("excluded")
    assert "mixup" in page.section("settings") and "torch" in page.section("settings")


def test_it_needs_nothing_but_itself(page: Page) -> None:
    sources = [attributes.get("src") or "" for _, attributes in page.elements]
    assert all(source.startswith("data:image/jpeg;") for source in sources if source)
    outside = r"""(?:src|href)=["'](?!data:|#)|url\(|@import|https?://"""
    assert not re.search(outside, page.markup)


@pytest.mark.slow
def test_many_mistakes_classes_and_files_are_cut_with_a_sentence(tmp_path: Path) -> None:
    classes = [f"class {n}" for n in range(60)]
    folder = make_run(tmp_path / "out", classes=classes, test=2, wrong=61, excluded=300)
    page = read_page(folder)
    assert page.section("mistakes").count("<article") == 60
    assert "60 of 61 mistakes are shown, the surest first; predictions.csv has all." in page.text
    assert page.section("right").count("<article") == 48
    assert "11 classes more would make the page slow to open" in page.text
    assert "100 files more: excluded.csv beside this page has all of them." in page.text
    assert 'class="cell middle' not in page.section("confusion"), "no room for numbers"


@pytest.mark.slow
def test_more_classes_than_can_be_drawn_leave_those_with_mistakes(tmp_path: Path) -> None:
    classes = [f"class {n}" for n in range(130)]
    folder = make_run(tmp_path / "out", classes=classes, test=1, wrong=3)
    page = read_page(folder)
    assert "The 120 of 130 classes with the most mistakes are drawn" in page.text
    assert len(page.markup) < 3_000_000


@pytest.mark.slow
def test_an_evaluation_says_whose_it_is(tmp_path: Path) -> None:
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
    assert "it recognised 91.0% of its own test photos" in page.text
    assert "nothing was trained here" in page.section("training")
    assert page.section("mistakes").count("<img") == 15, "the heat maps of the model it tried"
    assert "validation</button>" not in page.section("classes")


@pytest.mark.slow
def test_settings_in_a_reason_are_code(tmp_path: Path) -> None:
    page = read_page(make_run(tmp_path / "out"))
    assert "<td>asked for: <code>batch_size</code></td>" in page.section("training")


@pytest.mark.slow
def test_the_photos_of_a_set_go_by_its_name(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "my animals" / "out")
    assert "<title>clew: patterns in photos</title>" in read_page(folder).markup
    (tmp_path / "my animals" / "set.json").touch()
    assert "<title>clew: patterns in my animals</title>" in read_page(folder).markup


@pytest.mark.slow
def test_a_figure_that_is_too_good_is_called_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    assert "the figure is too good" not in read_page(folder).text
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["data"]
    change_results(folder, data=data | {"test_learnt_before": 2})
    told = "2 test photos had been learnt from by the weights that the training began with"
    assert told in read_page(folder).text


@pytest.mark.slow
def test_photos_that_the_model_had_seen_are_no_test(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "out")
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["data"]
    change_results(folder, data=data | {"all_seen": True})
    page = read_page(folder)
    assert "had learnt from all of these photos" in page.text
    assert "took no part in training" not in page.text
