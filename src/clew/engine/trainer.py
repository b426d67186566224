"""`fit`: train any model on any batches, in a folder from which an interrupted run resumes.
`record_epoch` is for a run whose first epoch is something else than steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
)
from clew.engine.classifier import score
from clew.engine.config import Batches, OpenBatches, PlanRequest, Trainable, TrainConfig
from clew.engine.feed import Position, open_batches
from clew.engine.folders import LAST, PLAN, RESULT, RUN_FILES, Logs, only_one
from clew.engine.loop import Loop
from clew.engine.plan import HardwarePlan, limit_threads, look_at_machine
from clew.engine.planner import plan_hardware
from clew.engine.processes import start_fabric, wait_for_all
from clew.engine.setup import Setup, build_optimizer
from clew.engine.state import Best, FitResult, Row, RunState, TrainingEnded, TrainingStarted
from clew.engine.step import build_precision, restored_precision
from clew.engine.torchrun import count_processes, is_first_process
from clew.storage.ownership import claim
from clew.storage.reading import read_json
from clew.storage.working_copy import working_copy
from clew.storage.writing import remove_temporaries, replace_json

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@restored_precision()
def fit(
    model: nn.Module,
    train: Batches | OpenBatches,
    validation: Batches | OpenBatches | None = None,
    *,
    test: Batches | OpenBatches | None = None,
    config: TrainConfig | None = None,
    request: PlanRequest | None = None,
    plan: HardwarePlan | None = None,
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
        plan: What `plan_hardware` chose for this request, to train without measuring again.
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
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise InputError(
            f"{type(model).__name__} cannot be trained: it must be an nn.Module with "
            "training_step(batch) -> StepOutput. Wrap a network that returns logits in "
            "clew.engine.Classifier."
        )
    leave_slow_kernels(model)
    limit_threads(max(1, look_at_machine().cores // count_processes()))
    with working_copy(as_path(output_dir)) as folder, only_one(folder):
        run = _Run(
            model,
            train,
            config or TrainConfig(),
            request or PlanRequest(),
            folder,
            settings or {},
            plan,
        )
        if run.is_finished:
            return run.load_result()
        report_to = report_to_all(reporter or log_event, *callbacks)
        report_to = report_to if run.fabric.is_global_zero else ignore_event
        with Threads(run.count_threads(), ignore_event):
            return run.train(validation, test, report_to, should_stop)


class _Run:
    """A run in its folder: new, interrupted or finished. Raises SettingsMismatchError if the folder
    belongs to another one."""

    def __init__(
        self,
        model: nn.Module,
        train: Batches | OpenBatches,
        config: TrainConfig,
        request: PlanRequest,
        folder: Path,
        settings: Mapping[str, Any],
        plan: HardwarePlan | None,
    ) -> None:
        self._model, self._train, self._folder = model, train, folder
        self._config, self._request = config, request
        self._identity = describe_run(model, config, request, settings)
        if is_first_process():
            claim(folder, RUN_FILES)
        about = None
        if (folder / LAST).exists():
            about = read_checkpoint(folder / LAST).about
            refuse_other_run(folder, about, self._identity)
        if is_first_process():
            remove_temporaries(folder, *RUN_FILES)
            if about is None:
                # The run it belongs to no longer exists.
                (folder / RESULT).unlink(missing_ok=True)
        self._is_started = about is not None
        self.fabric, self._plan = self._make_plan(plan) if about is None else self._read_plan(about)
        self._checkpoints = Checkpoints(folder, self.fabric, self._identity)
        self.is_finished = self._is_started and (folder / RESULT).exists()

    def _make_plan(self, plan: HardwarePlan | None) -> "tuple[Fabric, HardwarePlan]":
        if plan is not None:
            return start_fabric(plan.device), plan
        processes = count_processes()
        first = plan_hardware(self._request, config=self._config, processes=processes)
        fabric = start_fabric(first.device)
        plan = plan_hardware(
            self._request,
            model=self._model,
            open_batches=self._train,
            config=self._config,
            processes=processes,
            device=fabric.device,
        )
        return fabric, _with_own_size(plan, self._train)

    def _read_plan(self, about: Mapping[str, Any]) -> "tuple[Fabric, HardwarePlan]":
        plan = HardwarePlan.from_dict(about["plan"])
        _refuse_other_machine(plan, self._request, count_processes())
        plan = adapt_plan(plan, replace(PlanRequest(), **about["request"]), self._request)
        return start_fabric(plan.device), plan

    def count_threads(self) -> int:
        """Those of the plan, since their number changes how sums are rounded; not more than this
        process may use now, unless requested."""
        most = torch.get_num_threads()
        return self._request.threads or min(self._plan.threads or most, most)

    def load_result(self) -> FitResult:
        self._checkpoints.load_best(self._model)
        path = self._folder / RESULT
        try:
            return FitResult.from_dict(read_json(path, finite=False))
        except (OSError, ValueError) as error:
            raise StoreError(
                f'"{path}" cannot be read ({error}): delete it, then run the same command again '
                "to re-create it."
            ) from error

    def train(
        self,
        validation: Batches | OpenBatches | None,
        test: Batches | OpenBatches | None,
        reporter: Reporter,
        should_stop: Callable[[], bool],
    ) -> FitResult:
        config, plan, folder = self._config, self._plan, self._folder
        setup = Setup(self._model, self._train, config=config, plan=plan, fabric=self.fabric)
        state = RunState(total_steps=config.epochs * setup.feed.groups_an_epoch)
        if self._is_started:
            state = self._checkpoints.restore(setup.model, setup.optimizer, setup.step.precision)
        validated = self._open(validation, plan)
        logs = None
        if self.fabric.is_global_zero:
            replace_json(folder / PLAN, plan.to_dict())
            logs = Logs(folder, state.history)
        loop = Loop(
            setup,
            validated,
            state=state,
            checkpoints=self._checkpoints,
            logs=logs,
            reporter=reporter,
            should_stop=should_stop,
        )
        result = None
        reporter(
            TrainingStarted(
                plan=plan,
                epochs=config.epochs,
                steps=state.total_steps,
                done_steps=state.step,
                output_dir=folder,
                settings=self._identity,
            )
        )
        try:
            loop.run(resumed=self._is_started)
            result = self._finish(setup, state, test)
        finally:
            reporter(TrainingEnded(result=result))
        return result

    def _open(self, given: Batches | OpenBatches | None, plan: HardwarePlan) -> Batches | None:
        """Batches to evaluate on."""
        if given is None:
            return None
        return open_batches(given, plan, seed=self._config.seed, shuffle=False)

    def _finish(
        self, setup: Setup, state: RunState, test: Batches | OpenBatches | None
    ) -> FitResult:
        """Load the best weights and evaluate them on the test samples, at the threshold chosen on
        validation."""
        self._checkpoints.load_best(setup.model)
        batches, metrics = self._open(test, setup.plan), None
        if batches is not None and state.best is not None:
            found = score(setup.model, batches, setup.plan, setup.fabric)
            metrics = found.metrics(state.best.threshold)
        result = FitResult.of_run(state, setup.plan, setup.model, test=metrics)
        if setup.fabric.is_global_zero:
            replace_json(self._folder / PLAN, setup.plan.to_dict())
            replace_json(self._folder / RESULT, result.to_dict())
        wait_for_all(setup.fabric)
        return result


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
def record_epoch(
    model: nn.Module,
    train: OpenBatches,
    validation: OpenBatches,
    row: Mapping[str, float],
    *,
    begin: Callable[[], None],
    config: TrainConfig,
    request: PlanRequest,
    output_dir: Path,
    settings: Mapping[str, Any],
) -> None:
    """Save a model that was fitted without steps as the first epoch of a run. `fit` with the same
    arguments continues from what `begin` makes of the model, and keeps these weights if none of
    the later epochs is better; if the first is the only one, it ends at once.

    `row` has "train_loss", "samples_per_second" and "seconds"."""
    plan = plan_hardware(request)
    fabric = start_fabric(plan.device)
    steps_of, scored = (
        open_batches(one, plan, seed=config.seed, shuffle=False) for one in (train, validation)
    )
    metrics = score(model, scored, plan, fabric).metrics(None)
    full: Row = {"epoch": 1, "step": 0, "lr": None, "train_loss": row["train_loss"]}
    full |= {f"val_{name}": value for name, value in metrics.items()}
    full |= {**row, "data_wait_share": 0.0, "memory_bytes": MemoryUse(fabric.device, 0).look()}
    state = RunState(
        total_steps=(config.epochs - 1) * -(-len(steps_of) // plan.grad_accum),
        epoch=1,
        position=Position(epoch=1),
        best=Best(epoch=0, metrics=metrics, threshold=None),
        history=[full],
        seconds=row["seconds"],
        is_trained=config.epochs == 1,
    )
    checkpoints = Checkpoints(output_dir, fabric, describe_run(model, config, request, settings))
    checkpoints.keep_best(model)
    begin()
    optimizer = build_optimizer(model, config, lr=config.peak_lr(plan.effective_batch))
    with only_one(output_dir):
        claim(output_dir, RUN_FILES)
        precision = build_precision(plan.precision, fabric.device)
        checkpoints.save(model, optimizer, precision, state, plan)
