"""Photos in folders become a model: what its folder holds, and how it resumes."""

import csv
import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from PIL import Image

from clew.base.errors import (
    InputError,
    SettingsMismatchError,
    StoreError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.base.progress import Event, WorkAdvanced
from clew.engine import EpochEnded, HardwarePlan
from clew.loading.splits import Shares
from clew.patterns.trained.model import load_classifier
from clew.patterns.trained.tables import read_map, read_splits
from clew.patterns.training import LossSettings, PatternsConfig, Prepared, train_patterns
from clew.storage.ownership import claim
from clew.storage.reading import read_json
from tests.engine.children import start, tensors, wait, wait_until
from tests.events import notes, pick
from tests.patterns.training.making import COLORS, small_run, write_photo, write_photos

pytestmark = pytest.mark.slow


class Events:
    """Records the events, and whether anything was decoded or trained."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def prepared(self) -> Prepared:
        [event] = pick(self.events, Prepared)
        return event

    @property
    def decoded(self) -> int:
        return sum(event.count for event in pick(self.events, WorkAdvanced))

    @property
    def epochs(self) -> int:
        return len(pick(self.events, EpochEnded))


def read_results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_colors_are_classified(trained: Path) -> None:
    results = read_results(trained)
    assert results["test_accuracy"] > 0.8 and results["val_accuracy"] > 0.6
    low, high = results["test_accuracy_ci"]
    assert 0 < low < results["test_accuracy"] <= high <= 1
    assert results["classes"] == list(COLORS)


def test_results_record_how_they_were_made(trained: Path, photos: Path) -> None:
    results = read_results(trained)
    assert results["data"] == {
        "folder": str(photos),
        "photos": 42,
        "excluded": {},
        "other_files": 0,
        "splits": {"train": 30, "validation": 3, "test": 9},
        "test_seen_before": 0,
        "test_near_duplicates": 0,
        "split_folders": False,
    }
    assert results["test_photos"] == 9 == sum(map(sum, results["confusion"]))
    for row in results["per_class"]:
        assert (row["train"], row["validation"], row["test"]) == (10, 1, 3)
        assert all(0 <= row[name] <= 1 for name in ("recall", "f1"))
    assert results["epochs_run"] == 8 and 1 <= results["best_epoch"] <= 8
    assert (results["image_size"], results["network"], results["seed"]) == (16, "tiny", 0)
    assert results["train"]["monitor"] == "accuracy" and results["train"]["epochs"] == 8
    assert results["augment"]["flip"] is False and results["loss"]["label_smoothing"] == 0.1
    assert results["started_from"] is None
    assert 0.1 <= results["temperature"] <= 10 and results["test_loss"] > 0
    positive = ("seconds", "images_per_second", "parameters", "peak_memory_bytes")
    assert all(results[name] > 0 for name in positive)
    assert HardwarePlan.from_dict(results["plan"]).batch_size == 16
    assert results["versions"].keys() > {"clew", "torch", "pillow"}


def test_folder_holds_everything_about_the_model(trained: Path) -> None:
    found = {path.name for path in trained.iterdir()}
    tables = {"splits.csv", "excluded.csv", "predictions.csv", "log.csv"}
    weights = {"best.safetensors", "last.safetensors", "images", "curves.png"}
    assert found >= tables | weights | {"results.json", "result.json", "plan.json", "tensorboard"}
    assert not list(trained.rglob("*.part")) and not list(trained.rglob("*.tmp"))


def test_tables_name_every_photo(trained: Path) -> None:
    splits = read_table(trained / "splits.csv")
    assert Counter(row["split"] for row in splits) == {"train": 30, "validation": 3, "test": 9}
    assert len({row["digest"] for row in splits}) == 42
    assert {row["name"].split("/")[0] for row in splits} == {row["class"] for row in splits}
    predictions = read_table(trained / "predictions.csv")
    tested = {row["name"] for row in splits if row["split"] == "test"}
    assert {row["name"] for row in predictions} == tested
    results, right = read_results(trained), 0
    for row in predictions:
        assert float(row["probability"]) >= float(row["second_probability"]) >= 0
        assert row["predicted"] != row["second"]
        right += row["predicted"] == row["class"]
    assert right / len(predictions) == results["test_accuracy"]


def test_repeated_call_decodes_and_trains_nothing(trained: Path, photos: Path) -> None:
    before, events = (trained / "results.json").read_bytes(), Events()
    results = train_patterns(small_run(photos, trained, epochs=8), events)
    assert (events.decoded, events.epochs) == (0, 0)
    assert (trained / "results.json").read_bytes() == before
    assert results == read_json(trained / "results.json")


def test_run_killed_while_training_gives_the_same_result(photos: Path, tmp_path: Path) -> None:
    config = small_run(photos, tmp_path / "killed", epochs=7)
    saving = replace(config, train=replace(config.train, checkpoint_every_seconds=0))
    child = start(train_patterns, saving)
    log = config.out / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3, child)
    os.kill(child.pid, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    events = Events()
    results = train_patterns(config, events)
    assert events.decoded == 0 and 0 < events.epochs < 7
    unbroken = small_run(photos, tmp_path / "unbroken", epochs=7)
    whole = train_patterns(unbroken)
    best = "best.safetensors"
    assert tensors(config.out / best) == tensors(unbroken.out / best)
    same = ("test_accuracy", "test_loss", "temperature", "confusion", "best_epoch", "epochs_run")
    assert {name: results[name] for name in same} == {name: whole[name] for name in same}


def test_stop_while_decoding_keeps_decoded_photos(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos", dict.fromkeys(COLORS, 30))
    config = small_run(data, tmp_path / "out", epochs=1)
    with pytest.raises(TrainingStoppedError, match="stopped while reading photos"):
        train_patterns(config, should_stop=lambda: True)
    assert not (tmp_path / "out" / "results.json").exists()
    events = Events()
    train_patterns(config, events)
    assert 0 < events.decoded < 90


def test_run_killed_before_the_evaluation_does_not_train_again(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out, events = Path(shutil.copytree(trained, tmp_path / "out")), Events()
    for name in ("results.json", "predictions.csv", "curves.png"):
        (out / name).unlink()
    train_patterns(small_run(photos, out, epochs=8), events)
    assert events.epochs == 0
    assert (out / "predictions.csv").read_text() == (trained / "predictions.csv").read_text()
    assert read_results(out)["test_loss"] == pytest.approx(read_results(trained)["test_loss"])


def test_cache_location_does_not_change_the_result(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    events = Events()
    config = small_run(photos, tmp_path / "out", epochs=8, cache="disk")
    train_patterns(replace(config, images_dir=trained / "images"), events)
    assert events.prepared.place.value == "disk"
    assert events.decoded == 0 and not (tmp_path / "out" / "images").exists()
    best = "best.safetensors"
    assert tensors(tmp_path / "out" / best) == tensors(trained / best)


def test_bad_photos_are_excluded_and_named(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos", dict.fromkeys(COLORS, 7))
    good = (data / "azul" / "photo 0.png").read_bytes()
    (data / "azul" / "empty.jpg").touch()
    (data / "azul" / "text.png").write_text("this is text")
    (data / "azul" / "cut.png").write_bytes(good[: len(good) // 2])
    (data / "azul" / "again.png").write_bytes(good)
    Image.new("RGB", (3, 3)).save(data / "azul" / "tiny.png")
    write_photo(data / "azul" / "both.png", "azul", 77)
    write_photo(data / "red 🍎" / "both.png", "azul", 77)
    write_photo(data / "loose.png", "azul", 78)
    (data / "notes.txt").write_text("mine")
    events = Events()
    results = train_patterns(small_run(data, tmp_path / "out", epochs=1), events)
    rows = read_table(tmp_path / "out" / "excluded.csv")
    kinds = Counter(row["kind"] for row in rows)
    assert kinds == results["data"]["excluded"]
    assert kinds["contradiction"] == 2 and kinds["duplicate"] == kinds["empty"] == 1
    assert {"azul/empty.jpg", "azul/text.png", "azul/cut.png", "loose.png"} < {
        row["name"] for row in rows
    }
    assert all(row["reason"] for row in rows)
    assert results["data"]["photos"] == 21 and results["data"]["other_files"] == 1
    assert events.prepared.excluded == kinds


def test_split_folders_are_respected(tmp_path: Path) -> None:
    data = tmp_path / "photos"
    for split, count, first in (("Train", 6, 0), ("val", 2, 20), ("TEST", 3, 40)):
        write_photos(data / split, dict.fromkeys(COLORS, count), first=first)
    results = train_patterns(small_run(data, tmp_path / "out", epochs=1))
    assert results["data"]["splits"] == {"train": 18, "validation": 6, "test": 9}
    assert results["data"]["split_folders"] is True


def test_near_duplicates_in_given_split_folders_are_reported(tmp_path: Path) -> None:
    """Folders take precedence, but the accuracy is then too high."""
    data = tmp_path / "photos"
    for split, first in (("train", 0), ("val", 20), ("test", 40)):
        write_photos(data / split, {"azul": 3, "red 🍎": 3}, first=first)
    with Image.open(data / "train" / "azul" / "photo 0.png") as photo:
        photo.point([*range(1, 256), 255] * 3).save(data / "test" / "azul" / "brighter.png")
    events = Events()
    results = train_patterns(small_run(data, tmp_path / "out", epochs=1), events)
    assert results["data"]["test_near_duplicates"] == 1 and results["data"]["splits"]["test"] == 7
    assert (
        "1 test photo is a near duplicate of training photos: the test accuracy will be too high. "
        '"clew patterns clean" lists them.'
    ) in notes(events.events)


def test_twenty_photos_in_two_unequal_classes_give_finite_metrics(tmp_path: Path) -> None:
    """Even with all random augmentation, class weights, and a single test photo of one class."""
    data = write_photos(tmp_path / "photos", {"azul": 17, "red 🍎": 3})
    config = PatternsConfig(
        data=data,
        out=tmp_path / "out",
        network="tiny",
        epochs=2,
        loss=LossSettings(focal=True, class_weights=True),
        request=small_run(data, tmp_path).request,
    )
    events = Events()
    results = train_patterns(config, events)
    text = (tmp_path / "out" / "results.json").read_text(encoding="utf-8")
    assert "NaN" not in text and "Infinity" not in text
    assert results["image_size"] == 32 and results["test_photos"] == 4
    assert results["loss"]["focal_gamma"] == 2.0
    few, many = results["loss"]["class_weights"][::-1]
    assert few > 1 > many
    assert events.prepared.flip.reason and events.prepared.place.value == "ram"


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"azul": 5}, 'contains only one class \\("azul"\\)'),
        ({"azul": 1, "red 🍎": 1}, 'too few .*photos: "azul" \\(1\\), "red 🍎" \\(1\\)'),
        ({}, "check the path"),
    ],
)
def test_untrainable_photos_are_reported(
    tmp_path: Path, counts: dict[str, int], sentence: str
) -> None:
    data = write_photos(tmp_path / "photos", counts)
    with pytest.raises(InputError, match=sentence):
        train_patterns(small_run(data, tmp_path / "out", images_dir=tmp_path / "cache"))
    assert not (tmp_path / "out").exists()  # in a set it would be an unfinished run


def test_class_without_readable_photos_is_refused(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos", {"azul": 4, "red 🍎": 4})
    (data / "broken").mkdir()
    (data / "broken" / "a.jpg").touch()
    with pytest.raises(InputError, match='none of the photos of the class "broken" can be used'):
        train_patterns(small_run(data, tmp_path / "out"))


def test_different_settings_are_refused_with_both_values(trained: Path, photos: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir() if path.is_file()}
    with pytest.raises(
        SettingsMismatchError,
        match=r"(?s)config.epochs: was 8, is now 9.* "
        r"Use `overwrite=True` to start over in this folder\.$",
    ):
        train_patterns(small_run(photos, trained, epochs=9))
    with pytest.raises(
        SettingsMismatchError, match="image size of 16, but now it is 24.*`overwrite=True` to start"
    ):
        train_patterns(small_run(photos, trained, epochs=8, image_size=24))
    assert not (trained / "images" / "24px").exists()  # nothing is decoded in vain
    with pytest.raises(SettingsMismatchError, match=r"loss.focal_gamma: was None, is now 2.0"):
        train_patterns(small_run(photos, trained, epochs=8, loss=LossSettings(focal=True)))
    after = {path: path.stat().st_mtime_ns for path in trained.iterdir() if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {".lock"}


def test_different_photos_are_refused_with_what_changed_and_what_to_do(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    write_photo(data / "azul" / "new.png", "azul", 99)
    (data / "maçã ñ" / "photo 0.png").unlink()
    (data / "azul" / "photo 3.png").rename(data / "azul" / "renamed.png")  # no change
    with pytest.raises(
        SettingsMismatchError,
        match='1 new, 1 gone.* `start_from=".*out"`. Use `overwrite=True` to start',
    ):
        train_patterns(small_run(data, trained, epochs=8))


def test_overwrite_starts_over_and_keeps_other_files(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out, events = Path(shutil.copytree(trained, tmp_path / "out")), Events()
    for name in ("notes.txt", "mine.safetensors", "mine.part"):
        (out / name).write_text("mine")
    with pytest.raises(InputError, match="check the path"):  # nothing is lost by a slip
        train_patterns(small_run(tmp_path / "phtos", out, overwrite=True))
    assert read_results(out) == read_results(trained)
    results = train_patterns(small_run(photos, out, epochs=2, overwrite=True), events)
    assert (events.epochs, events.decoded) == (2, 0)
    assert results["epochs_run"] == 2
    for name in ("notes.txt", "mine.safetensors", "mine.part"):
        assert (out / name).read_text() == "mine"


def test_overwrite_does_not_touch_a_running_training(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "out"))
    with (
        FileLock(out / ".lock"),
        pytest.raises(StoreLockedError, match="another run is writing to"),
    ):
        train_patterns(small_run(photos, out, overwrite=True))
    assert read_results(out) == read_results(trained)


def test_second_run_with_other_photos_keeps_tables_of_running_one(
    photos: Path, tmp_path: Path
) -> None:
    """Its first checkpoint, which would identify the folder, may not exist yet."""
    out = tmp_path / "out"
    out.mkdir()
    claim(out, ["splits.csv"])
    (out / "splits.csv").write_text("those of the other run")
    with FileLock(out / ".lock"), pytest.raises(StoreLockedError, match="another run"):
        train_patterns(small_run(photos, out))
    assert (out / "splits.csv").read_text() == "those of the other run"


def test_photos_renamed_before_evaluation_use_their_new_names(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "out"))
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    (out / "results.json").unlink()
    for path in list(data.rglob("*.png")):
        path.rename(path.with_name(f"new {path.name}"))
    train_patterns(small_run(data, out, epochs=8))
    for table in ("splits.csv", "predictions.csv"):
        assert all((data / row["name"]).exists() for row in read_table(out / table))


def test_model_without_its_last_checkpoint_is_not_overwritten(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "out"))
    (out / "last.safetensors").unlink()
    with pytest.raises(
        SettingsMismatchError, match="choose another `out` .*`overwrite=True` to start"
    ):
        train_patterns(small_run(photos, out, epochs=8))
    assert read_results(out) == read_results(trained)
    assert train_patterns(small_run(photos, out, epochs=1, overwrite=True))["epochs_run"] == 1


def test_other_files_in_the_folder_stay(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.html").write_text("mine")
    train_patterns(small_run(photos, tmp_path, epochs=1))
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_a_file_of_somebody_else_is_not_replaced(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report.html\" was not written by clew"):
        train_patterns(small_run(photos, tmp_path, epochs=1, overwrite=True))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("report.html", "mine")
    ]


def test_results_of_something_else_are_not_overwritten(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"model": "of an evaluation", "test_accuracy": 1.0}')
    with pytest.raises(StoreError, match=r"results.json\" was not written by this command"):
        train_patterns(small_run(photos, tmp_path))
    (tmp_path / "results.json").write_text('{"runs": []}')
    with pytest.raises(StoreError, match=r"results.json\" was not written by this command"):
        train_patterns(small_run(photos, tmp_path, overwrite=True))
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(StoreError, match=r"results.json\" cannot be read .* delete it"):
        train_patterns(small_run(photos, tmp_path))


def test_output_inside_the_photos_is_refused(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos", dict.fromkeys(COLORS, 3))
    with pytest.raises(InputError, match="is inside the photo folder"):
        train_patterns(small_run(data, data / "out"))
    assert not (data / "out").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"network": "huge"}, 'unknown network "huge": choose from: lite0, tiny, '),
        ({"pretrained": True}, '"tiny" has no pretrained weights'),
    ],
)
def test_networks_are_refused_before_photos_are_read(
    photos: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        train_patterns(small_run(photos, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image_size": 7}, "image_size is 7: it must be from 16 to 1024"),
        ({"epochs": 0}, "epochs is 0: it must be 1 or more"),
        ({"shares": Shares(train=0.8, validation=0.2, test=0)}, "shares is 80/20/0: .* test"),
        ({"pretrained": True, "start_from": Path("x")}, "both name weights"),
    ],
)
def test_invalid_settings_are_reported(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small_run(Path("photos"), Path("out"), **changes)


def test_a_run_says_which_photos_show_none_of_its_classes(trained: Path) -> None:
    unknown = read_results(trained)["unknown"]
    # With few validation photos there is none, and the model works without.
    assert (unknown is None) == (load_classifier(trained, "cpu").unknown is None)


def test_the_map_has_every_photo_with_its_split_and_prediction(trained: Path) -> None:
    rows, thumbnails = read_map(trained)
    splits = {row.name: row for row in read_splits(trained)}
    assert {row.name for row in rows} == {*splits}
    assert {row.split for row in rows} == {"train", "validation", "test"}
    assert all(row.label == splits[row.name].label for row in rows)
    assert thumbnails.startswith(b"\xff\xd8")
