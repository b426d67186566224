"""Experiment logging, with the real libraries where they are installed: nothing leaves the disk."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError, TrainingStoppedError
from clew.engine import ExperimentLogger, ModelMeasured, TrainConfig
from tests.engine.learning import train

CONFIG = TrainConfig(epochs=3, lr=1e-2, checkpoint_every_seconds=0)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    library = pytest.importorskip("mlflow", reason="no mlflow here: pip install clew[mlflow]")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return library


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    library = pytest.importorskip("wandb", reason="no wandb here: pip install clew[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    yield library
    library.teardown()  # it remembers the folder and the environment


def read_wandb(wandb: Any, folder: Path) -> dict[str, bytes]:
    """The offline runs by their files' names, once everything is written."""
    wandb.teardown()
    return {path.name: path.read_bytes() for path in folder.glob("wandb/offline-run-*/*.wandb")}


def find_run(mlflow: Any, project: str = "clew") -> Any:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(project)
    [run] = client.search_runs([experiment.experiment_id])
    return run


def stop_after(steps: int) -> Any:
    taken = iter(range(steps))
    return lambda: next(taken, None) is None


@pytest.mark.slow
def test_mlflow_gets_settings_epochs_and_final_metrics(mlflow: Any, tmp_path: Path) -> None:
    logger = ExperimentLogger("mlflow", project="points")
    result = train(tmp_path / "runs" / "a", config=CONFIG, callbacks=[logger])
    run = find_run(mlflow, "points")
    assert (run.info.run_name, run.info.status) == ("runs/a", "FINISHED")
    assert run.data.params["config.lr"] == "0.01" and run.data.params["plan.device"] == "cpu"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "val_auroc")
    logged = [(metric.step, metric.value) for metric in history]
    assert logged == [(row["epoch"], row["val_auroc"]) for row in result.history]
    assert result.test is not None
    assert run.data.metrics["test_auroc"] == result.test["auroc"]
    assert run.data.metrics["best_epoch"] == result.best_epoch


@pytest.mark.slow
def test_resumed_training_continues_its_mlflow_run(mlflow: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError):
        train(
            tmp_path / "run",
            config=CONFIG,
            callbacks=[ExperimentLogger("mlflow")],
            should_stop=stop_after(20),
        )
    assert find_run(mlflow).info.status == "KILLED"
    train(tmp_path / "run", config=CONFIG, callbacks=[ExperimentLogger("mlflow")])
    run = find_run(mlflow)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_loss")
    assert [metric.step for metric in history] == [1, 2, 3]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_metrics_measured_later_are_logged_in_a_with_block(mlflow: Any, tmp_path: Path) -> None:
    with ExperimentLogger("mlflow", name="photos") as logger:
        train(tmp_path / "run", config=CONFIG, callbacks=[logger])
        logger(ModelMeasured(metrics={"test_accuracy": 0.5, "test_auroc": None}))
        assert find_run(mlflow).info.status == "RUNNING"
    run = find_run(mlflow)
    assert (run.info.run_name, run.info.status) == ("photos", "FINISHED")
    assert run.data.metrics["test_accuracy"] == 0.5


@pytest.mark.slow
def test_tracker_that_fails_later_does_not_end_training(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("connection refused")

    logger = ExperimentLogger("mlflow")

    def break_tracker(_: Any) -> None:
        monkeypatch.setattr(mlflow.MlflowClient, "log_batch", fail)

    train(tmp_path / "run", config=CONFIG, callbacks=[logger, break_tracker])
    assert "metrics could not be logged to MLflow: connection refused" in caplog.text
    assert find_run(mlflow).info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow")
def test_unreachable_tracker_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://server")
    with pytest.raises(InputError, match=r"MLflow cannot be reached \(.*check MLFLOW_TRACKING_URI"):
        train(tmp_path / "run", config=CONFIG, callbacks=[ExperimentLogger("mlflow")])


@pytest.mark.slow
def test_wandb_gets_settings_epochs_and_final_metrics(wandb: Any, tmp_path: Path) -> None:
    train(tmp_path / "run", config=CONFIG, callbacks=[ExperimentLogger("wandb")])
    [content] = read_wandb(wandb, tmp_path).values()
    for name in (b"config.lr", b"plan.device", b"val_auroc", b"best_val_auroc", b"test_auroc"):
        assert name in content


@pytest.mark.slow
def test_resumed_training_continues_its_wandb_run(wandb: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError):
        train(
            tmp_path / "run",
            config=CONFIG,
            callbacks=[ExperimentLogger("wandb")],
            should_stop=stop_after(20),
        )
    train(tmp_path / "run", config=CONFIG, callbacks=[ExperimentLogger("wandb")])
    tracked = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]
    assert tracked["epochs"] == 3
    assert {*read_wandb(wandb, tmp_path)} == {f"run-{tracked['run_id']}.wandb"}


def test_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        InputError, match=r'requires the package wandb.*"pip install clew\[wandb\]"'
    ):
        ExperimentLogger("wandb")


def test_unknown_tracker_is_refused() -> None:
    with pytest.raises(InputError, match='log_to is "comet": choose from: wandb, mlflow'):
        ExperimentLogger("comet")  # type: ignore[arg-type]
