"""How good a model is on new photos, on its own, and on a mix."""

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreError, TrainingStoppedError
from clew.base.progress import Event
from clew.patterns.training import evaluate_patterns
from clew.storage.reading import read_json
from tests.events import notes
from tests.patterns.training.making import COLORS, write_photo, write_photos

pytestmark = pytest.mark.slow


def test_unseen_photos_are_all_counted(trained: Path, tmp_path: Path) -> None:
    data = write_photos(tmp_path / "new", dict.fromkeys(COLORS, 5), first=100)
    results = evaluate_patterns(trained, data, out=tmp_path / "out")
    assert results["test_photos"] == 15 and results["test_accuracy"] > 0.8
    assert results["data"]["seen"] == {} and not results["data"]["all_seen"]
    assert results["data"]["excluded"] == {}
    assert results == read_json(tmp_path / "out" / "results.json")
    assert results["model"] == str(trained)
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 15


def test_only_test_photos_of_its_own_dataset_count(trained: Path, photos: Path) -> None:
    """The accuracy is then that of the run, whatever the photos are called now."""
    results = evaluate_patterns(trained, photos)
    own = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    for name in ("test_accuracy", "test_photos", "confusion"):
        assert results[name] == own[name]
    assert results["test_loss"] == pytest.approx(own["test_loss"], rel=1e-4)
    assert results["data"]["seen"] == {"train": 30, "validation": 3}
    assert results["data"]["excluded"] == {"used in training": 30, "used in validation": 3}


def test_partly_seen_photos_are_listed(trained: Path, photos: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "mixed"))
    for path in list(data.rglob("*.png")):
        path.rename(path.with_name(f"renamed {path.name}"))
    write_photos(data, {"azul": 2}, first=100)
    results = evaluate_patterns(trained, data, out=tmp_path / "out")
    assert results["test_photos"] == 9 + 2
    with (tmp_path / "out" / "excluded.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter((row["kind"], row["reason"]) for row in rows) == {
        ("used in training", "the model was trained on this image"): 30,
        ("used in validation", "the model's best epoch was selected on this image"): 3,
    }


def test_evaluation_on_seen_photos_only_says_so(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    with (trained / "splits.csv").open(encoding="utf-8", newline="") as file:
        learnt = [row["name"] for row in csv.DictReader(file) if row["split"] == "train"]
    for name in learnt:
        (tmp_path / "seen" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, tmp_path / "seen" / name)
    events: list[Event] = []
    results = evaluate_patterns(trained, tmp_path / "seen", reporter=events.append)
    assert any("trained or validated on all of these photos" in text for text in notes(events))
    assert results["data"]["all_seen"] and results["data"]["seen"] == {"train": 30}
    assert results["test_photos"] == 30


def test_one_class_is_enough_to_evaluate(trained: Path, tmp_path: Path) -> None:
    data = write_photos(tmp_path / "one", {"azul": 4}, first=100)
    results = evaluate_patterns(trained, data)
    assert results["test_photos"] == 4
    assert [row["recall"] is None for row in results["per_class"]] == [False, True, True]
    assert [row["test"] for row in results["per_class"]] == [4, 0, 0]


def test_unknown_classes_are_named(trained: Path, tmp_path: Path) -> None:
    data = write_photos(tmp_path / "new", {"azul": 2, "cats": 2, "dogs": 2}, first=100)
    with pytest.raises(InputError, match='does not know: "cats", "dogs". It knows "azul", '):
        evaluate_patterns(trained, data)


def test_bad_photos_and_copies_are_counted_once(trained: Path, tmp_path: Path) -> None:
    data = write_photos(tmp_path / "new", {"azul": 3, "red 🍎": 3}, first=100)
    (data / "azul" / "empty.png").touch()
    shutil.copy(data / "azul" / "photo 100.png", data / "azul" / "photo 100 (copy).png")
    write_photo(data / "azul" / "both.png", "azul", 500)
    write_photo(data / "red 🍎" / "both.png", "azul", 500)
    results = evaluate_patterns(trained, data)
    assert results["test_photos"] == 6
    assert results["data"]["excluded"] == {"contradiction": 2, "empty": 1, "duplicate": 1}


def test_no_usable_photos_are_reported(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new" / "azul").mkdir(parents=True)
    (tmp_path / "new" / "azul" / "a.jpg").touch()
    with pytest.raises(InputError, match=r'none of the photos .* can be used .*"azul/a.jpg"'):
        evaluate_patterns(trained, tmp_path / "new")


def test_stopped_evaluation_writes_nothing(trained: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError, match="stopped after 1 of 42"):
        evaluate_patterns(trained, photos, out=tmp_path / "out", should_stop=lambda: True)
    assert not (tmp_path / "out").exists()


def test_results_of_a_run_are_not_overwritten(trained: Path, photos: Path) -> None:
    with pytest.raises(StoreError, match="was not written by this command: choose another `out`"):
        evaluate_patterns(trained, photos, out=trained)


def test_model_without_its_splits_is_not_evaluated(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    (copy / "splits.csv").unlink()
    with pytest.raises(StoreError, match="lists the photos that the model was trained on"):
        evaluate_patterns(copy, photos, should_stop=lambda: True)  # before any photo is read
