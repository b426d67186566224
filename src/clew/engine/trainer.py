"""`fit`: train any model on any batches, in a folder where a stopped run goes on by itself."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from clew.engine.checkpoint import Checkpoints, Parts
from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.evaluate import Metrics, score
from clew.engine.events import TrainingEnded
from clew.engine.feed import Source
from clew.engine.folders import LAST, PLAN, RESULT, only_one, write_json
from clew.engine.identity import adapt_plan, describe_run, refuse_other_run, saved_request
from clew.engine.logs import Logs
from clew.engine.loop import Loop
from clew.engine.model_files import read_about
from clew.engine.planning.hardware import limit_threads, look_at_machine
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.planner import plan_hardware
from clew.engine.processes import count_processes, is_first_process, start_fabric
from clew.engine.protocols import Batches, OpenBatches, Trainable
from clew.engine.setup import Setup
from clew.engine.state import FitResult, RunState
from clew.errors import InputError, StoreError
from clew.progress import Reporter, ignore_event, log_event
from clew.storage.writing import remove_temporaries

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def fit(
    model: nn.Module,
    train: Batches | OpenBatches,
    validation: Batches | OpenBatches | None = None,
    *,
    test: Batches | OpenBatches | None = None,
    config: TrainConfig | None = None,
    request: PlanRequest | None = None,
    output_dir: Path,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FitResult:
    """Train `model` (with a `training_step`); afterwards it bears the weights of its best epoch.

    The same call again goes on where the last one was, after a kill at any moment too, or gives
    the result that is there; a resumed run keeps its plan. `settings` (JSON) is what else tells
    this run from others, such as the data and the network's sizes. Under torchrun all processes
    must call; they train one model together.

    `should_stop` is asked after every step; when it says yes, TrainingStoppedError is raised with
    everything on disk. Raises TrainingError when training cannot go on, SettingsMismatchError for
    a folder that belongs to another run, InputError for what cannot be used.
    """
    task = _Task(
        model=_check_model(model),
        train=train,
        validation=validation,
        test=test,
        config=config or TrainConfig(),
        request=request or PlanRequest(),
        folder=Path(output_dir),
        settings=settings or {},
    )
    limit_threads(max(1, look_at_machine().cores // count_processes()))
    with only_one(task.folder):
        about = task.find_saved()
        if is_first_process():
            remove_temporaries(task.folder)
            if about is None:
                (task.folder / RESULT).unlink(missing_ok=True)  # its run is gone
        fabric, plan = task.plan(about)
        if about is not None and (task.folder / RESULT).exists():
            return task.load_result(fabric)
        voice = (reporter or log_event) if fabric.is_global_zero else ignore_event
        return _train(task, plan, fabric, voice, should_stop, is_begun=about is not None)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What `fit` was asked for."""

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
        """As JSON keeps it: there are no tuples in it, and no paths."""
        run = describe_run(self.model, self.config, self.request, self.settings)
        return json.loads(json.dumps(run, default=str))

    def find_saved(self) -> dict[str, Any] | None:
        """What the folder's checkpoint tells; raises SettingsMismatchError if it is another's."""
        if not (self.folder / LAST).exists():
            return None
        about = read_about(self.folder / LAST)
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

    def open(self, given: Batches | OpenBatches | None, plan: HardwarePlan) -> Batches | None:
        """Batches to evaluate on."""
        if given is None:
            return None
        return Source(given, seed=self.config.seed, shuffle=False).open(plan)

    def load_result(self, fabric: "Fabric") -> FitResult:
        Checkpoints(self.folder, fabric, self.identity).load_best(self.model)
        path = self.folder / RESULT
        try:
            return FitResult.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f'"{path}" cannot be read ({error}): delete it; the same command writes it anew.'
            ) from error


def _train(
    task: _Task,
    plan: HardwarePlan,
    fabric: "Fabric",
    reporter: Reporter,
    should_stop: Callable[[], bool],
    *,
    is_begun: bool,
) -> FitResult:
    source = Source(task.train, seed=task.config.seed, shuffle=True)
    setup = Setup(task.model, source, config=task.config, plan=plan, fabric=fabric)
    checkpoints = Checkpoints(task.folder, fabric, task.identity)
    state = RunState(total_steps=task.config.epochs * setup.feed.groups_an_epoch)
    if is_begun:
        state = checkpoints.restore(_parts(setup))
    logs = None
    if fabric.is_global_zero:
        write_json(task.folder / PLAN, plan.to_dict())
        logs = Logs(task.folder, state.history)
    loop = Loop(
        setup,
        task.open(task.validation, plan),
        state=state,
        checkpoints=checkpoints,
        logs=logs,
        reporter=reporter,
        should_stop=should_stop,
    )
    try:
        if not state.is_trained:
            loop.run(resumed=is_begun)
    finally:
        setup.feed.close()
        reporter(TrainingEnded())
        if logs is not None:
            logs.close()
    return _finish(task, setup, state, checkpoints)


def _finish(task: _Task, setup: Setup, state: RunState, checkpoints: Checkpoints) -> FitResult:
    """The best weights, on the test samples, at the threshold that validation chose."""
    checkpoints.load_best(setup.model)
    result = FitResult.of_run(
        state,
        setup.plan,
        test=_test(task, setup, state),
        parameters=sum(p.numel() for p in setup.model.parameters()),
    )
    if setup.fabric.is_global_zero:
        write_json(task.folder / PLAN, setup.plan.to_dict())
        result.save(task.folder)
    setup.fabric.barrier()
    return result


def _test(task: _Task, setup: Setup, state: RunState) -> Metrics | None:
    batches = task.open(task.test, setup.plan)
    if batches is None or state.best is None:
        return None
    return score(setup.model, batches, setup.plan, setup.fabric).metrics(state.best.threshold)


def _parts(setup: Setup) -> Parts:
    return Parts(model=setup.model, optimizer=setup.optimizer, precision=setup.step.precision)


def _check_model(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise InputError(
            f"{type(model).__name__} cannot be trained: it must be an nn.Module with "
            f"training_step(batch) -> StepOutput. clew.engine.Classifier makes one of any network "
            f"that gives logits."
        )
    return model


def _with_own_size(plan: HardwarePlan, train: Batches | OpenBatches) -> HardwarePlan:
    """A ready-made loader's batch size is what it is, measured or not."""
    own = getattr(train, "batch_size", None)
    if callable(train) or not isinstance(own, int) or own * plan.processes == plan.batch_size:
        return plan
    return plan.change("batch_size", own * plan.processes, "that of the loader that was given")


def _refuse_other_machine(plan: HardwarePlan, request: PlanRequest, processes: int) -> None:
    if plan.processes != processes:
        raise InputError(
            f"this run was started with {plan.processes} processes, there are {processes} now: let "
            f"torchrun start {plan.processes}, or start over in another folder."
        )
    plan_hardware(replace(request, device=plan.device), processes=processes)
