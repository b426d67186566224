"""`fit`: train any model on any batches, in a folder from which an interrupted run resumes.
`record_fit` leaves the same folder for a model that was fitted in another way."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clew.base.cpu import Threads, leave_slow_kernels
from clew.base.errors import InputError, StoreError
from clew.base.memory import MemoryUse
from clew.base.progress import Reporter, ignore_event, log_event, report_to_all
from clew.base.urls import as_path
from clew.engine.checkpoint import (
    Checkpoints,
    adapt_plan,
    describe_run,
    read_checkpoint,
    refuse_other_run,
    saved_request,
)
from clew.engine.classifier import Metrics, score
from clew.engine.config import Batches, OpenBatches, PlanRequest, Trainable, TrainConfig
from clew.engine.feed import Source
from clew.engine.folders import LAST, PLAN, RESULT, RUN_FILES, Logs, only_one
from clew.engine.loop import Loop
from clew.engine.plan import HardwarePlan, limit_threads, look_at_machine
from clew.engine.planner import plan_hardware
from clew.engine.processes import (
    count_processes,
    is_first_process,
    start_fabric,
    wait_for_all,
)
from clew.engine.setup import Setup, build_optimizer
from clew.engine.state import (
    Best,
    EpochEnded,
    FitResult,
    Row,
    RunState,
    TrainingEnded,
    TrainingStarted,
)
from clew.engine.step import build_precision, restored_precision
from clew.storage.ownership import claim
from clew.storage.reading import read_json
from clew.storage.working_copy import working_copy
from clew.storage.writing import remove_temporaries, replace_json

if TYPE_CHECKING:
    from lightning_fabric import Fabric


_VALIDATED = "val_"


@restored_precision()
def fit(
    model: nn.Module,
    train: Batches | OpenBatches,
    validation: Batches | OpenBatches | None = None,
    *,
    test: Batches | OpenBatches | None = None,
    config: TrainConfig | None = None,
    request: PlanRequest | None = None,
    output_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    callbacks: Sequence[Reporter] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> FitResult:
    """Train a model and leave it with the weights of its best epoch.

    Call it again with the same arguments to resume after an interruption, even after a kill; a
    finished run returns its result at once. A resumed run keeps its plan. Under torchrun every
    process must call `fit`: together they train one model.

    Args:
        model: Any `nn.Module` with `training_step(batch) -> StepOutput`. `Classifier` makes one
            from a network that returns logits.
        train: Batches to train on: a `Loader`, a PyTorch `DataLoader`, or a function that opens
            them with the `LoadSettings` that the plan chose.
        validation: Batches to validate on. They determine the best epoch; without them, the
            training loss does.
        test: Batches to evaluate the best epoch on.
        config: Number of epochs, learning rate and other hyperparameters. [default:
            `TrainConfig()`]
        request: Choices to fix in the hardware plan. The others are made by measuring the
            alternatives.
        output_dir: Folder for checkpoints, weights, log.csv, TensorBoard and the result, or its
            URL.
        settings: What else identifies this run, as plain JSON data: the dataset, the dimensions of
            the network. A run with different settings is not resumed.
        reporter: Called with every event instead of the log.
        callbacks: Functions that are also called with every event (`TrainingStarted`, `EpochEnded`,
            `TrainingEnded`, ...), in the first process only. `ExperimentLogger` is one.
        should_stop: Called after every step; training saves a checkpoint and stops when it returns
            True.

    Returns:
        The metrics of the run, and its history with one row per epoch.

    Raises:
        TrainingStoppedError: `should_stop` returned True. Everything is saved.
        TrainingError: Training cannot continue, or another process under torchrun has ended.
        SettingsMismatchError: The folder belongs to another run.
        InputError: An argument cannot be used.

    Examples:
        >>> losses = []
        >>> def keep_loss(event):
        ...     if isinstance(event, EpochEnded):
        ...         losses.append(event.row["train_loss"])
        >>> model = Classifier(network)
        >>> result = fit(
        ...     model, train, validation, output_dir=Path("run"), callbacks=[keep_loss]
        ... )
        >>> result.best_epoch, result.best_val["auroc"]
    """
    _check_model(model)
    leave_slow_kernels(model)
    limit_threads(max(1, look_at_machine().cores // count_processes()))
    with working_copy(as_path(output_dir)) as folder, only_one(folder):
        task = _Task(
            model=model,
            train=train,
            validation=validation,
            test=test,
            config=config or TrainConfig(),
            request=request or PlanRequest(),
            folder=folder,
            settings=settings or {},
        )
        if is_first_process():
            claim(task.folder, RUN_FILES)
        about = task.find_saved()
        if is_first_process():
            remove_temporaries(task.folder, *RUN_FILES)
            if about is None:
                # The run it belongs to no longer exists.
                (task.folder / RESULT).unlink(missing_ok=True)
        fabric, plan = task.plan(about)
        if about is not None and (task.folder / RESULT).exists():
            return task.load_result(fabric)
        report_to = report_to_all(reporter or log_event, *callbacks)
        report_to = report_to if fabric.is_global_zero else ignore_event
        with Threads(task.count_threads(plan), ignore_event):
            return _train(task, plan, fabric, report_to, should_stop, is_started=about is not None)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """The arguments of `fit`."""

    model: nn.Module
    train: Batches | OpenBatches
    validation: Batches | OpenBatches | None
    test: Batches | OpenBatches | None
    config: TrainConfig
    request: PlanRequest
    folder: Path
    settings: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the run, as it reads back from JSON: without tuples and paths."""
        run = describe_run(self.model, self.config, self.request, self.settings)
        return json.loads(json.dumps(run, default=str))

    def find_saved(self) -> dict[str, Any] | None:
        """What the folder's checkpoint says; raises SettingsMismatchError if it belongs to another
        run."""
        if not (self.folder / LAST).exists():
            return None
        about = read_checkpoint(self.folder / LAST).about
        refuse_other_run(self.folder, about, self.identity)
        return about

    def plan(self, about: dict[str, Any] | None) -> "tuple[Fabric, HardwarePlan]":
        processes = count_processes()
        if about is not None:
            plan = HardwarePlan.from_dict(about["plan"])
            _refuse_other_machine(plan, self.request, processes)
            plan = adapt_plan(plan, saved_request(about), self.request)
            return start_fabric(plan.device), plan
        first = plan_hardware(self.request, config=self.config, processes=processes)
        fabric = start_fabric(first.device)
        plan = plan_hardware(
            self.request,
            model=self.model,
            open_batches=self.train,
            config=self.config,
            processes=processes,
            device=fabric.device,
        )
        return fabric, _with_own_size(plan, self.train)

    def count_threads(self, plan: HardwarePlan) -> int:
        """Those of the plan, since their number changes how sums are rounded; not more than this
        process may use now, unless requested."""
        most = torch.get_num_threads()
        return self.request.threads or min(plan.threads or most, most)

    def open(self, given: Batches | OpenBatches | None, plan: HardwarePlan) -> Batches | None:
        """Batches to evaluate on."""
        if given is None:
            return None
        return Source(given, seed=self.config.seed, shuffle=False).open(plan)

    def describe_start(self, setup: Setup, state: RunState) -> TrainingStarted:
        return TrainingStarted(
            plan=setup.plan,
            epochs=self.config.epochs,
            steps=state.total_steps,
            done_steps=state.step,
            output_dir=self.folder,
            settings=self.identity,
        )

    def load_result(self, fabric: "Fabric") -> FitResult:
        Checkpoints(self.folder, fabric, self.identity).load_best(self.model)
        path = self.folder / RESULT
        try:
            return FitResult.from_dict(read_json(path, finite=False))
        except (OSError, ValueError) as error:
            raise StoreError(
                f'"{path}" cannot be read ({error}): delete it, then run the same command again '
                "to re-create it."
            ) from error


def _train(
    task: _Task,
    plan: HardwarePlan,
    fabric: "Fabric",
    reporter: Reporter,
    should_stop: Callable[[], bool],
    *,
    is_started: bool,
) -> FitResult:
    source = Source(task.train, seed=task.config.seed, shuffle=True)
    setup = Setup(task.model, source, config=task.config, plan=plan, fabric=fabric)
    checkpoints = Checkpoints(task.folder, fabric, task.identity)
    state = RunState(total_steps=task.config.epochs * setup.feed.groups_an_epoch)
    if is_started:
        state = checkpoints.restore(setup.model, setup.optimizer, setup.step.precision)
    validation = task.open(task.validation, plan)
    logs = None
    if fabric.is_global_zero:
        replace_json(task.folder / PLAN, plan.to_dict())
        logs = Logs(task.folder, state.history)
    loop = Loop(
        setup,
        validation,
        state=state,
        checkpoints=checkpoints,
        logs=logs,
        reporter=reporter,
        should_stop=should_stop,
    )
    result = None
    reporter(task.describe_start(setup, state))
    try:
        _run(loop, setup, logs, resumed=is_started)
        result = _finish(task, setup, state, checkpoints)
    finally:
        reporter(TrainingEnded(result=result))
    return result


def _run(loop: Loop, setup: Setup, logs: Logs | None, *, resumed: bool) -> None:
    try:
        if not loop.state.is_trained:
            loop.run(resumed=resumed)
    finally:
        setup.feed.close()
        if logs is not None:
            logs.close()


def _finish(task: _Task, setup: Setup, state: RunState, checkpoints: Checkpoints) -> FitResult:
    """Load the best weights and evaluate them on the test samples, at the threshold chosen on
    validation."""
    checkpoints.load_best(setup.model)
    result = FitResult.of_run(
        state,
        setup.plan,
        test=_test(task, setup, state),
        parameters=sum(p.numel() for p in setup.model.parameters()),
    )
    if setup.fabric.is_global_zero:
        replace_json(task.folder / PLAN, setup.plan.to_dict())
        result.save(task.folder)
    wait_for_all(setup.fabric)
    return result


def _test(task: _Task, setup: Setup, state: RunState) -> Metrics | None:
    batches = task.open(task.test, setup.plan)
    if batches is None or state.best is None:
        return None
    return score(setup.model, batches, setup.plan, setup.fabric).metrics(state.best.threshold)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise InputError(
            f"{type(model).__name__} cannot be trained: it must be an nn.Module with "
            "training_step(batch) -> StepOutput. Wrap a network that returns logits in "
            "clew.engine.Classifier."
        )


def _with_own_size(plan: HardwarePlan, train: Batches | OpenBatches) -> HardwarePlan:
    """A ready-made loader's batch size is fixed, measured or not."""
    own = getattr(train, "batch_size", None)
    if callable(train) or not isinstance(own, int) or own * plan.processes == plan.batch_size:
        return plan
    return plan.change("batch_size", own * plan.processes, "the batch size of the given loader")


def _refuse_other_machine(plan: HardwarePlan, request: PlanRequest, processes: int) -> None:
    if plan.processes != processes:
        raise InputError(
            f"this run was started with {plan.processes} processes, but now there are "
            f"{processes}: start {plan.processes} processes with torchrun, or start over in "
            "another folder."
        )
    plan_hardware(replace(request, device=plan.device), processes=processes)


@restored_precision()
def record_fit(
    model: nn.Module,
    history: Sequence[Row],
    *,
    best_epoch: int,
    config: TrainConfig,
    request: PlanRequest,
    output_dir: Path,
    settings: Mapping[str, Any],
    reporter: Reporter,
) -> FitResult:
    """Write the files that `fit` leaves with these weights: `fit` with the same arguments then
    returns the same result at once. `history` has one row per epoch, as in log.csv (epoch, step,
    train_loss, samples_per_second, seconds, and validation metrics as val_...); `best_epoch` counts
    from 1."""
    plan = plan_hardware(request)
    fabric = start_fabric(plan.device)
    identity = describe_run(model, config, request, settings)
    identity = json.loads(json.dumps(identity, default=str))
    memory = MemoryUse(fabric.device, 0).look()
    rows = [{"data_wait_share": 0.0, "memory_bytes": memory, **row} for row in history]
    state = _finished(rows, best_epoch)
    result = FitResult.of_run(
        state, plan, test=None, parameters=sum(p.numel() for p in model.parameters())
    )
    optimizer = build_optimizer(model, config, lr=config.peak_lr(plan.effective_batch))
    precision = build_precision("fp32", fabric.device)
    with only_one(output_dir):
        _report(reporter, plan, state, output_dir, identity)
        Logs(output_dir, state.history).close()
        replace_json(output_dir / PLAN, plan.to_dict())
        checkpoints = Checkpoints(output_dir, fabric, identity)
        checkpoints.keep_best(model)
        checkpoints.save(model, optimizer, precision, state, plan)
        result.save(output_dir)
    reporter(TrainingEnded(result=result))
    return result


def _finished(history: Sequence[Row], best_epoch: int) -> RunState:
    best = history[best_epoch - 1]
    metrics = {
        name.removeprefix(_VALIDATED): value
        for name, value in best.items()
        if name.startswith(_VALIDATED)
    }
    steps = int(history[-1]["step"] or 0)
    return RunState(
        total_steps=steps,
        epoch=len(history),
        step=steps,
        best=Best(epoch=best_epoch - 1, metrics=metrics, threshold=None),
        history=list(history),
        seconds=sum(float(row["seconds"] or 0) for row in history),
        is_trained=True,
    )


def _report(
    reporter: Reporter,
    plan: HardwarePlan,
    state: RunState,
    output_dir: Path,
    identity: Mapping[str, Any],
) -> None:
    reporter(
        TrainingStarted(
            plan=plan,
            epochs=state.epoch,
            steps=state.total_steps,
            done_steps=0,
            output_dir=output_dir,
            settings=identity,
        )
    )
    for row in state.history:
        reporter(EpochEnded(row=row))
