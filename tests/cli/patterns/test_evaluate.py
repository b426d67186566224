"""clew patterns evaluate: output and invalid usage."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from clew.patterns.training import train_patterns
from tests.patterns.training.making import COLORS, small_run, write_photos
from tests.stores import one_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model beside its photos. Shared: do not change it."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_photos(folder / "photos", dict.fromkeys(COLORS, 7))
    with one_thread():
        train_patterns(small_run(folder / "photos", folder / "model", epochs=2))
    return folder / "model"


@pytest.fixture
def folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user, with a model and other photos."""
    shutil.copytree(model, tmp_path / "model")
    write_photos(tmp_path / "others", dict.fromkeys(COLORS, 4), first=100)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_classifier_is_evaluated_on_other_photos(run: Any, folder: Path) -> None:
    (folder / "others" / "azul" / "empty.jpg").touch()
    ended = run("patterns", "evaluate", "--model", "model", "--data", "others")
    assert ended.code == 0, ended.err
    out = "model/evaluated/others"
    for line in (
        rf"evaluated on 12 photos from {re.escape(str(folder / 'others'))}",
        rf"excluded: 1 file \(1 empty\): see {out}/excluded.csv for the reasons",
        r"test accuracy \d+\.\d% \(95% confidence interval \d+\.\d% to \d+\.\d%\): "
        r"\d+ of 12 photos correct",
        r"accuracy on its own test split: \d+\.\d%",
        rf"report: {out}/report.html",
        rf"all metrics: {out}/results.json",
    ):
        assert re.search(f"^{line}$", ended.out, re.M), f"{line}\n{ended.out}"
    assert json.loads((folder / out / "results.json").read_text())["test_photos"] == 12


def test_photos_seen_in_training_are_excluded(run: Any, folder: Path, model: Path) -> None:
    photos = model.parent / "photos"
    ended = run("patterns", "evaluate", "--model", "model", "--data", photos)
    assert ended.code == 0, ended.err
    excluded = "excluded: 18 files (15 used in training, 3 used in validation)"
    assert excluded in ended.out and "on 3 photos from " in ended.out
    trained_on = (folder / "model" / "splits.csv").read_text(encoding="utf-8").splitlines()[1:]
    for name, _, split, _ in (line.split(",") for line in trained_on):
        if split == "train":
            (folder / "seen" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / name, folder / "seen" / name)
    ended = run("patterns", "evaluate", "--model", "model", "--data", "seen")
    assert "warning: all of these photos were used to train or select the classifier" in ended.out


def test_two_folders_with_the_same_name_have_their_own_results(run: Any, folder: Path) -> None:
    write_photos(folder / "b" / "others", {"azul": 2}, first=200)
    for data in ("others", "b/others", "others"):
        assert run("patterns", "evaluate", "--model", "model", "--data", data).code == 0
    found = {path.name for path in (folder / "model" / "evaluated").iterdir()}
    assert found == {"others", "others 2"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "nowhere", "--data", "others"], 'there is no model at "nowhere"'),
        (["--model", "model", "--data", "nowhere"], '"nowhere"'),
        (["--model", "model", "--data", "cats"], 'does not know: "cats"'),
        (["--data", "others"], 'the library "patterns" does not exist'),
    ],
)
def test_invalid_usage_prints_one_message_and_exits_with_2(
    run: Any, folder: Path, words: list[str], sentence: str
) -> None:
    write_photos(folder / "cats", {"cats": 2, "azul": 2}, first=100)
    ended = run("patterns", "evaluate", *words)
    assert ended.code == 2
    assert sentence in ended.err and len(ended.err.splitlines()) == 1
