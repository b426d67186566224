"""clew.patterns from Python: train, look at the result, identify, evaluate, review."""

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clew import patterns
from clew.base.errors import InputError
from clew.engine import Event, ModelMeasured
from clew.patterns.flow import ClassifierResult
from tests.events import pick
from tests.patterns.training.making import COLORS, write_photo, write_photos

QUICK: dict[str, Any] = {
    "network": "tiny",
    "image_size": 16,
    "epochs": 2,
    "augment": False,
    "device": "cpu",
    "batch_size": 16,
    "num_workers": 0,
    "amp": False,
    "compile": False,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ClassifierResult:
    """A classifier beside its photos. Shared: do not change it."""
    folder = tmp_path_factory.mktemp("workflow")
    write_photos(folder / "photos", dict.fromkeys(COLORS, 7))
    return patterns.train(str(folder / "photos"), out=str(folder / "trained"), **QUICK)


@pytest.mark.slow
def test_training_returns_accuracy_interval_and_a_table_per_class(
    trained: ClassifierResult,
) -> None:
    low, high = trained.interval
    assert 0 <= low <= trained.accuracy <= high <= 1
    assert trained.table.column("class").to_pylist() == list(trained.classes) == sorted(COLORS)
    assert trained.to_pandas()["test"].sum() == sum(map(sum, trained.confusion)) == 3
    assert repr(trained).startswith("ClassifierResult(test accuracy ")
    assert "<table>" in trained._repr_html_() and "test accuracy" in trained._repr_html_()
    assert trained.report.exists() and trained.load("cpu").classes == trained.classes


@pytest.mark.slow
def test_output_folder_holds_the_settings_that_repeat_the_run(trained: ClassifierResult) -> None:
    settings = tomllib.loads((trained.path / "run.toml").read_text(encoding="utf-8"))
    assert settings["command"] == "patterns train"
    assert settings["network"] == "tiny" and settings["augment"] is False
    assert settings["out"] == str(trained.path) and "overwrite" not in settings


@pytest.mark.slow
def test_metrics_are_reported_for_experiment_loggers(trained: ClassifierResult) -> None:
    events: list[Event] = []
    photos = trained.path.parent / "photos"
    again = patterns.train(photos, out=trained.path, **QUICK, reporter=events.append)
    assert again.raw == trained.raw
    [measured] = pick(events, ModelMeasured)
    assert measured.metrics["test_accuracy"] == trained.accuracy


@pytest.mark.slow
def test_identification_can_be_iterated_and_converted_to_a_table(
    trained: ClassifierResult, tmp_path: Path
) -> None:
    write_photo(tmp_path / "new" / "a.png", "azul", 500)
    (tmp_path / "new" / "b.png").write_text("not an image")
    classifier = patterns.load_classifier(trained.path, device="cpu")
    found = patterns.identify(
        tmp_path / "new", model=classifier, out=tmp_path / "out", device="cpu", threshold=0
    )
    good, bad = found
    assert len(found) == 2 and (good.name, bad.name) == ("a.png", "b.png")
    [prediction] = classifier.predict(tmp_path / "new" / "a.png")
    assert (good.label, good.confidence) == (
        prediction.label,
        pytest.approx(prediction.confidence, abs=1e-4),
    )
    assert bad.label is None and bad.fault is not None
    assert found.table.column("label").to_pylist() == [good.label, None]
    assert repr(found).startswith("IdentifyResult(2 photos, ")
    settings = tomllib.loads((tmp_path / "out" / "run.toml").read_text(encoding="utf-8"))
    assert settings["not_recorded"] == ["model"]  # an object, not a path


@pytest.mark.slow
def test_evaluation_is_written_beside_the_classifier(
    trained: ClassifierResult, tmp_path: Path
) -> None:
    write_photos(tmp_path / "others", dict.fromkeys(COLORS, 2), first=300)
    result = patterns.evaluate(
        tmp_path / "others", model=trained.path, out=tmp_path / "out", device="cpu"
    )
    assert (result.path, result.model) == (tmp_path / "out", trained.path)
    assert result.raw["test_photos"] == 6 and result.report.exists()
    assert (tmp_path / "out" / "run.toml").exists()


@pytest.mark.slow
def test_set_is_trained_again_only_if_photos_or_settings_change(tmp_path: Path) -> None:
    library = tmp_path / "sets"
    animals = patterns.create_set("animals", library=library)
    write_photos(tmp_path / "in", dict.fromkeys(COLORS, 4))
    imported = patterns.import_photos(animals, tmp_path / "in")
    assert imported.count("added").total() == 12
    first = patterns.train(name="animals", library=library, **QUICK)
    assert first.is_new and first.path == animals.runs / "001"
    assert patterns.describe_set(library=library).model is not None
    unchanged = patterns.train(library=library)
    assert not unchanged.is_new and unchanged.raw == first.raw
    again = patterns.train(library=library, **{**QUICK, "network": None, "image_size": None})
    assert again.is_new and again.path == animals.runs / "002"
    [listed] = patterns.list_sets(library=library)
    assert [run.folder.name for run in listed.runs] == ["001", "002"]


@pytest.mark.slow
def test_doubtful_photos_are_reviewed_at_the_terminal(
    trained: ClassifierResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo(tmp_path / "new" / "a.png", "azul", 501)
    out, target = tmp_path / "out", tmp_path / "target"
    (target / "azul").mkdir(parents=True)
    patterns.identify(tmp_path / "new", model=trained.path, out=out, threshold=1, device="cpu")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    result = patterns.review_photos(model=trained.path, identified=out, data=target)
    assert result.counts == {"approved": 1} and result.left == 0
    assert result.folder == str(target)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data": "photos", "name": "animals"},
            'the set "animals" and `data` "photos" cannot be combined',
        ),
        ({"out": "trained"}, 'out is "trained": it requires `data`'),
        ({"data": "photos", "rand_augment": "9"}, 'rand_augment is "9": use N,M: the number of'),
        ({"data": "photos", "split": "90/10"}, 'split is "90/10": use TRAIN/VALIDATION/TEST'),
    ],
)
def test_wrong_settings_are_named_as_in_python(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match=message):
        patterns.train(**settings)


def test_unknown_tracker_is_refused_before_training(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", dict.fromkeys(COLORS, 7))
    with pytest.raises(InputError, match='log_to is "comet": choose from: wandb, mlflow'):
        patterns.train(tmp_path / "photos", out=tmp_path / "out", log_to="comet")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_training_is_logged_to_mlflow_with_its_test_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here: pip install clew[mlflow]")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", dict.fromkeys(COLORS, 7))
    result = patterns.train("photos", **QUICK, log_to="mlflow")
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("clew").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test_accuracy"] == result.accuracy
    assert run.data.params["network"] == "tiny"
    noted = json.loads((tmp_path / "trained" / "tracking.json").read_text(encoding="utf-8"))
    assert noted["mlflow"]["epochs"] == 2
