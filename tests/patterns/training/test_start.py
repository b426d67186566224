"""A run that starts from the weights of an earlier one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.base.errors import InputError, SettingsMismatchError, StoreError
from clew.base.progress import Event
from clew.engine.folders import BEST
from clew.engine.model_files import read_model, write_model
from clew.patterns.networks import build_network
from clew.patterns.trained.model import load_classifier
from clew.patterns.trained.tables import read_splits
from clew.patterns.training import evaluate_patterns, train_patterns
from clew.patterns.training.config import PatternsConfig, usual_epochs
from clew.patterns.training.start import find_head, open_start
from tests.events import notes
from tests.patterns.training.making import COLORS, small_run, write_photo, write_photos

pytestmark = pytest.mark.slow

ANY = {"network": None, "image_size": None}


@pytest.fixture
def grown(photos: Path, tmp_path: Path) -> Path:
    """The photos of the model, more of one class, and a new class, sorted before the others."""
    data = Path(shutil.copytree(photos, tmp_path / "grown"))
    for number in range(50, 54):
        write_photo(data / "azul" / f"more {number}.png", "azul", number)
    for number in range(6):
        write_photo(data / "Apples" / f"{number}.png", "Apples", number + 200)
    return data


@pytest.mark.slow
def test_weights_of_remaining_classes_are_kept(trained: Path) -> None:
    start = open_start(trained)
    classes = ("Apples", *COLORS)
    network = build_network("tiny", classes=4, image_size=16)
    fresh = {name: value.clone() for name, value in network.state_dict().items()}
    start.load_into(network, classes)
    before = load_classifier(trained, "cpu").network.state_dict()
    heads = find_head("tiny", 16)
    assert heads and all(fresh[name].shape[0] == 4 for name in heads)
    for name, value in network.state_dict().items():
        if name in heads:
            torch.testing.assert_close(value[1:], before[name])
            torch.testing.assert_close(value[0], fresh[name][0])
        else:
            torch.testing.assert_close(value, before[name])


@pytest.mark.slow
def test_added_photos_continue_from_the_last_weights(
    trained: Path, grown: Path, tmp_path: Path
) -> None:
    """Known photos stay in their splits: test photos are never trained on."""
    config = small_run(grown, tmp_path / "out", **ANY, start_from=trained, epochs=1)
    results = train_patterns(config)
    assert results["started_from"] == str(trained)
    assert (results["network"], results["image_size"]) == ("tiny", 16)
    assert results["classes"] == ["Apples", *COLORS]
    before = {row.digest: row.split for row in read_splits(trained)}
    after = {row.digest: row.split for row in read_splits(tmp_path / "out")}
    assert {digest: after[digest] for digest in before} == before
    assert len(after) == len(before) + 10


@pytest.mark.slow
def test_weights_of_a_removed_class_are_dropped(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "fewer"))
    shutil.rmtree(data / "azul")
    config = small_run(data, tmp_path / "out", **ANY, start_from=trained, epochs=1)
    assert train_patterns(config)["classes"] == ["maçã ñ", "red 🍎"]


@pytest.mark.slow
def test_run_with_other_starting_weights_is_not_resumed(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    train_patterns(small_run(photos, out, epochs=1, start_from=trained))
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))  # the same weights elsewhere
    train_patterns(small_run(photos, out, epochs=1, start_from=moved))
    with pytest.raises(SettingsMismatchError, match="started_from: was '.*', is now None"):
        train_patterns(small_run(photos, out, epochs=1))


@pytest.mark.parametrize("count", [20, 1_400, 10_000])
def test_fewer_epochs_are_used_with_starting_weights(count: int) -> None:
    cold = PatternsConfig(data=Path("photos"), out=Path("out"))
    warm = replace(cold, start_from=Path("before"))
    assert cold.train_for(count).epochs == usual_epochs(count) >= 30
    assert warm.train_for(count).epochs == max(10, usual_epochs(count) // 3)
    assert replace(warm, epochs=5).train_for(count).epochs == 5


def test_long_runs_have_more_patience() -> None:
    config = PatternsConfig(data=Path("photos"), out=Path("out"), epochs=300)
    assert config.train_for(100).patience == 100
    assert replace(config, epochs=30).train_for(100).patience == 20
    assert replace(config, patience=5).train_for(100).patience == 5
    assert replace(config, patience=0).train_for(100).patience is None


def test_gpu_repeats_few_photos_more_often() -> None:
    assert usual_epochs(2_000, on_gpu=True) > usual_epochs(2_000) > usual_epochs(50_000) == 30
    assert usual_epochs(50_000, on_gpu=True) == 30


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"network": "small"},
            'network is "small": the weights in .* were trained with network tiny. Omit `network`',
        ),
        (
            {"network": None, "image_size": 32},
            "image_size is 32: the weights in .* were trained with image_size 16",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    trained: Path, photos: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        train_patterns(small_run(photos, tmp_path / "out", start_from=trained, **changes))


def test_folder_without_a_finished_model_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match='there is no folder ".*nowhere"'):
        train_patterns(small_run(photos, tmp_path / "out", start_from=tmp_path / "nowhere"))
    with pytest.raises(StoreError, match="contains no trained model"):
        train_patterns(small_run(photos, tmp_path / "out", start_from=photos))


def test_model_is_not_trained_over_itself(trained: Path, photos: Path) -> None:
    with pytest.raises(InputError, match="`start_from` and `out` are both"):
        train_patterns(small_run(photos, trained, start_from=trained))


@pytest.mark.slow
def test_new_photos_alone_can_be_trained_on(trained: Path, tmp_path: Path) -> None:
    data = write_photos(tmp_path / "new", {"azul": 5, "other": 5}, first=300)
    results = train_patterns(small_run(data, tmp_path / "out", **ANY, start_from=trained, epochs=1))
    assert results["classes"] == ["azul", "other"]


@pytest.mark.slow
def test_photos_seen_in_earlier_runs_are_remembered(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    """Although the second one had none of its photos."""
    data, second, third = tmp_path / "new", tmp_path / "second", tmp_path / "third"
    write_photos(data, dict.fromkeys(COLORS, 5), first=300)
    train_patterns(small_run(data, second, **ANY, start_from=trained, epochs=1))
    results = evaluate_patterns(second, photos)
    assert results["data"]["seen"] == {"train": 30, "validation": 3}
    assert results["test_photos"] == 9
    train_patterns(small_run(photos, third, **ANY, start_from=second, epochs=1))
    assert read_splits(third) == read_splits(trained)
    assert evaluate_patterns(third, data)["test_photos"] == 3


@pytest.mark.slow
def test_test_photos_that_were_trained_on_are_reported(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    """Folders take precedence, but the accuracy is then too high."""
    data, out = tmp_path / "photos", tmp_path / "out"
    events: list[Event] = []
    for row in read_splits(trained):
        folder = "train" if row.split == "test" else "test"
        (data / folder / row.label).mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / row.name, data / folder / row.label)
    config = small_run(data, out, **ANY, start_from=trained, epochs=1)
    assert train_patterns(config, events.append)["data"]["test_seen_before"] == 33
    assert [
        line
        for line in notes(events)
        if line.startswith("the starting weights were trained on 33 of the 33 test photos")
    ]
    assert evaluate_patterns(out, data / "test")["data"]["all_seen"]


def test_weights_of_another_network_are_reported(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    saved = read_model(other / BEST)
    tensors, about = saved.read(saved.kinds), saved.about
    del tensors["network.classify.bias"]
    write_model(other / BEST, tensors, about)
    with pytest.raises(StoreError, match='do not match the network "tiny" in this version'):
        train_patterns(small_run(photos, tmp_path / "out", start_from=other))
