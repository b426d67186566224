"""Experiment logging: a callback that sends a run's settings and metrics to Weights & Biases or
MLflow."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from clew.base.errors import InputError, without_settings
from clew.base.progress import Event, Reporter, report_to_all
from clew.base.settings import flatten_settings
from clew.base.typed_json import Bounds, Count, read_as
from clew.engine.folders import TRACKING
from clew.engine.state import EpochEnded, FitResult, ModelMeasured, TrainingEnded, TrainingStarted
from clew.storage.reading import read_json
from clew.storage.writing import replace_json

logger = logging.getLogger("clew")
Tracker = Literal["wandb", "mlflow"]
Metrics = Mapping[str, float | None]
_TITLES: dict[Tracker, str] = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
_ADVICE: dict[Tracker, str] = {
    "wandb": 'log in with "wandb login", or set WANDB_MODE=offline to write to the disk only',
    "mlflow": "check MLFLOW_TRACKING_URI, and that the server is running",
}
_MLFLOW_MOST_PARAMS, _MLFLOW_LONGEST_PARAM = 100, 500


class ExperimentLogger:
    """A callback for `fit` that logs each run to Weights & Biases or MLflow.

    It logs the settings and the hardware plan at the start, one row of metrics per epoch, and the
    metrics of the best epoch at the end. A resumed training continues its run in the tracker.

    The run is closed when training ends. In a `with` block it stays open until the next training
    or the end of the block, so that what is measured later (`ModelMeasured`) is logged too.

    Args:
        tracker: "wandb" or "mlflow".
        project: The project (Weights & Biases) or experiment (MLflow) to log to.
        name: The name of the run. By default, the last two parts of the output folder's path.

    Raises:
        InputError: The tracker is unknown, or its library is not installed.

    Examples:
        >>> logger = ExperimentLogger("mlflow", project="detectors")
        >>> fit(model, train, validation, output_dir=Path("run"), callbacks=[logger])
    """

    def __init__(self, tracker: Tracker, *, project: str = "clew", name: str | None = None) -> None:
        check_tracker(tracker)
        self._tracker: Tracker = tracker
        try:
            self._library = import_module(tracker)
        except ImportError as error:
            raise InputError(
                f"logging to {_TITLES[tracker]} requires the package {tracker}, which cannot be "
                f'imported ({error}): run "pip install clew[{tracker}]".'
            ) from None
        self._project, self._name = project, name
        self._run: _WandbRun | _MlflowRun | None = None
        self._note = _Note(Path())
        self._keeps_open = False

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, TrainingStarted):
            self._start(event)
        elif isinstance(event, EpochEnded):
            self._log_epoch(event.row)
        elif isinstance(event, ModelMeasured):
            self._summarize(event.metrics)
        elif isinstance(event, TrainingEnded):
            self._end(event.result)

    def __enter__(self) -> Self:
        self._keeps_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._keeps_open = False
        self._close(is_complete=True)

    def _start(self, event: TrainingStarted) -> None:
        self._close(is_complete=True)
        self._note = _Note(event.output_dir / TRACKING, self._tracker)
        folder = event.output_dir.resolve()
        open_run = _WandbRun if self._tracker == "wandb" else _MlflowRun
        try:
            self._run = open_run(
                self._library,
                run_id=self._note.run_id,
                project=self._project,
                name=self._name or "/".join(folder.parts[-2:]),
                settings=_describe(event),
            )
        except Exception as error:  # each library has errors of its own, and of its HTTP client
            reason = without_settings(str(error)).strip().partition("\n")[0].rstrip(".")
            raise InputError(
                f"{_TITLES[self._tracker]} cannot be reached ({reason}): {_ADVICE[self._tracker]}."
            ) from error
        self._note.write(self._run.id, self._note.epochs)

    def _log_epoch(self, row: Mapping[str, Any]) -> None:
        """Log an epoch, once: a killed run trains the epochs after its last checkpoint again."""
        epoch = row["epoch"]
        if self._run is None or epoch <= self._note.epochs:
            return
        with self._tolerate():
            metrics = {name: value for name, value in row.items() if name != "epoch"}
            self._run.log(_numbers(metrics), epoch)
            self._note.write(self._run.id, epoch)

    def _summarize(self, metrics: Metrics) -> None:
        if self._run is not None:
            with self._tolerate():
                self._run.summarize(_numbers(metrics))

    def _end(self, result: FitResult | None) -> None:
        if result is not None:
            self._summarize(_summary(result))
        if result is None or not self._keeps_open:
            self._close(is_complete=result is not None)

    def _close(self, *, is_complete: bool) -> None:
        run, self._run = self._run, None
        if run is not None:
            with self._tolerate():
                run.close(is_complete=is_complete)

    @contextmanager
    def _tolerate(self) -> Iterator[None]:
        """Keep a tracker that is down for a while from ending hours of training."""
        try:
            yield
        except Exception as error:
            logger.warning("metrics could not be logged to %s: %s", _TITLES[self._tracker], error)


@contextmanager
def tracked(reporter: Reporter, log_to: Tracker | None) -> Iterator[Reporter]:
    """The reporter, combined with an `ExperimentLogger` if `log_to` names a tracker."""
    if log_to is None:
        yield reporter
        return
    with ExperimentLogger(log_to) as logger:
        yield report_to_all(reporter, logger)


def check_tracker(tracker: str) -> None:
    """Raise InputError for an unknown tracker."""
    if tracker not in get_args(Tracker):
        raise InputError("choose from: wandb, mlflow.", setting="log_to", value=tracker)


class _Note:
    """The file in a run's folder that records its ID in the tracker and how many epochs were
    logged."""

    def __init__(self, path: Path, tracker: str = "") -> None:
        self._path, self._tracker = path, tracker
        try:
            self._all: dict[str, _Noted] = read_as(dict[str, _Noted], read_json(path))
        except (OSError, ValueError):
            self._all = {}  # a new run in the tracker
        noted = self._all.get(tracker, _Noted())
        self.run_id, self.epochs = noted.run_id, noted.epochs

    def write(self, run_id: str, epochs: int) -> None:
        self.run_id, self.epochs = run_id, epochs
        self._all[self._tracker] = _Noted(run_id=run_id, epochs=epochs)
        replace_json(self._path, {tracker: asdict(noted) for tracker, noted in self._all.items()})


@dataclass(frozen=True, kw_only=True)
class _Noted:
    run_id: Annotated[str, Bounds(most=200)] | None = None
    epochs: Count = 0


class _WandbRun:
    """A run in Weights & Biases that is open for logging; `id` reopens it. Epochs are the x axis:
    W&B would ignore steps that go back after a kill."""

    def __init__(
        self, wandb: Any, *, run_id: str | None, project: str, name: str, settings: dict[str, Any]
    ) -> None:
        self._run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow" if run_id else None,
            config=settings,
            reinit="create_new",
            settings=wandb.Settings(console="off"),  # progress bars make it unreadable
        )
        self.id: str = self._run.id
        self._run.define_metric("*", step_metric="epoch")

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        self._run.log({**metrics, "epoch": epoch})

    def summarize(self, metrics: dict[str, float]) -> None:
        self._run.summary.update(metrics)

    def close(self, *, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


class _MlflowRun:
    """A run in MLflow, logged through the client so that the process's own active run is not
    touched."""

    def __init__(
        self, mlflow: Any, *, run_id: str | None, project: str, name: str, settings: dict[str, Any]
    ) -> None:
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        if run_id is not None:
            self.id: str = run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        self.id = self._client.create_run(experiment, run_name=name).info.run_id
        params = [
            self._entities.Param(name, str(value)[:_MLFLOW_LONGEST_PARAM])
            for name, value in settings.items()
        ]
        for start in range(0, len(params), _MLFLOW_MOST_PARAMS):
            some = params[start : start + _MLFLOW_MOST_PARAMS]
            self._client.log_batch(self.id, params=some)

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        figures = [self._entities.Metric(key, value, now, epoch) for key, value in metrics.items()]
        self._client.log_batch(self.id, metrics=figures)

    def summarize(self, metrics: dict[str, float]) -> None:
        self.log(metrics, 0)

    def close(self, *, is_complete: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if is_complete else "KILLED")


def _describe(event: TrainingStarted) -> dict[str, Any]:
    """The settings and the plan as flat names and values, without the shapes of the weights, which
    are too many."""
    settings = {name: part for name, part in event.settings.items() if name != "model"}
    flat = dict(flatten_settings({**settings, "plan": event.plan.choices}))
    return {name.removeprefix("settings."): value for name, value in flat.items()}


def _summary(result: FitResult) -> dict[str, float | None]:
    return {
        "best_epoch": result.best_epoch,
        "threshold": result.threshold,
        "parameters": result.parameters,
        "total_seconds": result.seconds,
        "mean_samples_per_second": result.samples_per_second,
        "peak_memory_bytes": result.peak_memory_bytes,
        **{f"best_val_{name}": value for name, value in result.best_val.items()},
        **{f"test_{name}": value for name, value in (result.test or {}).items()},
    }


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep only finite numbers: trackers take only numbers, and MLflow's database rejects NaN."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
