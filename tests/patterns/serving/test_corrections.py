"""What a person corrects on the page comes back in the next review."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clew.patterns.library.choose import choose_model
from clew.patterns.review import open_review
from clew.patterns.review.session import title_of
from clew.patterns.settings import ReviewSettings
from clew.patterns.trained.model import PatternModel, load_classifier
from tests.patterns.identification.making import draw_photo, save_color_model
from tests.patterns.serving.serving import ServedPhotos, photo_of, serving

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A model in its own folder, and the photos that it was trained on."""
    model, data = save_color_model(tmp_path / "colors"), tmp_path / "data"
    draw_photo(data / "red/first.png", "red")
    results = {"temperature": 1.0, "classes": ["red"], "data": {"folder": str(data)}}
    (model / "results.json").write_text(json.dumps(results))
    return model


def test_a_correction_is_asked_about_in_the_next_review(trained: Path, tmp_path: Path) -> None:
    model, photo = load_classifier(trained, "cpu"), photo_of("red", "JPEG")
    with serving(model, trained) as served:
        status, kept = served.send("corrections", photo, name="../my cat.exe", label="Cat")
        assert status == 200 and (kept["label"], kept["waiting"]) == ("Cat", 1)
    with open_review(choose_model(model=trained), ReviewSettings()) as review:
        question = review.current
        assert question is not None and question.label == "Cat"
        assert title_of(question) == "my cat.exe (corrected to Cat)"
        assert question.best[1][0] == "red"
        review.approve()
    [placed] = (tmp_path / "data/Cat").iterdir()
    assert placed.read_bytes() == photo and placed.suffix == ".jpg"
    with open_review(choose_model(model=trained), ReviewSettings()) as review:
        assert review.current is None


def test_the_last_correction_of_a_photo_counts_and_can_be_undone(
    served: ServedPhotos, tmp_path: Path
) -> None:
    photo = photo_of("red")
    _, first = served.send("corrections", photo, label="green")
    _, second = served.send("corrections", photo, label="azul n\N{COMBINING TILDE}")
    assert (second["id"], second["waiting"]) == (first["id"], 1)
    assert second["label"] == "azul ñ", "the class that exists"
    folder = tmp_path / "identified/served"
    assert len(list((folder / "photos").iterdir())) == 1
    where = f"corrections/{first['id']}"
    assert served.send(where, method="DELETE") == (200, {"waiting": 0})
    assert served.send(where, method="DELETE")[0] == 404
    assert not list((folder / "photos").iterdir())


def test_two_browsers_correct_at_once(served: ServedPhotos) -> None:
    photos = [photo_of("red", sides=(20 + number, 20)) for number in range(12)]
    with ThreadPoolExecutor(6) as browsers:
        replies = list(
            browsers.map(lambda one: served.send("corrections", one, label="green"), photos * 2)
        )
    assert {status for status, _ in replies} == {200}
    assert served.service.corrections.count() == 12


@pytest.mark.parametrize("label", ["", "..", "a/b", "a\x00b", "\u202egreen", ".hidden"])
def test_a_class_that_cannot_be_a_folder_is_refused(served: ServedPhotos, label: str) -> None:
    status, told = served.send("corrections", photo_of("red"), label=label)
    assert status == 400 and told["error"]["param"] == "label"
    assert served.service.corrections.count() == 0


def test_only_so_many_corrections_are_kept(color_model: PatternModel, tmp_path: Path) -> None:
    with serving(color_model, tmp_path, max_corrections=1) as served:
        assert served.send("corrections", photo_of("red"), label="green")[0] == 200
        status, told = served.send("corrections", photo_of("green"), label="red")
        assert (status, told["error"]["code"]) == (429, "queue_full")
        assert served.send("corrections", photo_of("red"), label="red")[0] == 200


def test_a_list_of_others_deletes_no_file_elsewhere(served: ServedPhotos, tmp_path: Path) -> None:
    _, kept = served.send("corrections", photo_of("red"), label="green")
    file = tmp_path / "identified/served/identified.json"
    other = tmp_path / f"mine-{kept['id']}.png"
    other.write_bytes(b"mine")
    content = json.loads(file.read_text())
    content["photos"][0]["path"] = str(other)
    file.write_text(json.dumps(content))
    assert served.send(f"corrections/{kept['id']}", method="DELETE")[0] == 200
    assert other.read_bytes() == b"mine"


def test_a_correction_that_cannot_be_saved_is_said_without_a_path(
    served: ServedPhotos, tmp_path: Path
) -> None:
    (tmp_path / "identified").write_text("a file is in the way")
    status, told = served.send("corrections", photo_of("red"), label="green")
    assert (status, told["error"]["code"]) == (507, "not_saved")
    assert str(tmp_path) not in str(told)
