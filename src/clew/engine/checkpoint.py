"""`last.safetensors`, from which a run resumes, `best.safetensors`, the weights to use, and what
identifies a run: it resumes only with the settings it was started with."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.base.errors import SettingsMismatchError, StoreError
from clew.base.settings import find_differences
from clew.base.typed_json import read_as, without_nan
from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.feed import Position, check_random_state, random_state, restore_random_state
from clew.engine.folders import BEST, LAST, NEXT_BEST
from clew.engine.model_files import ModelFile, Wanted, check_about, read_model, write_model
from clew.engine.plan import HardwarePlan
from clew.engine.processes import gather, wait_for_all
from clew.engine.setup import load_optimizer, optimizer_shapes, optimizer_tensors
from clew.engine.state import Best, EpochSums, RunState
from clew.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clew.engine.step import Precision


T = TypeVar("T")
_MOST_RANDOM = 1 << 16  # values of a random number generator's state
_ADVICE = "restore it from a backup, delete it to train again, or choose another output folder"
_RUN: Wanted = {
    "model": dict,
    "config": dict,
    "request": PlanRequest,
    "settings": dict,
    "plan": HardwarePlan,
    "state": dict,
    "processes": list,
    "scaler": dict[str, float],
}
_BEST: Wanted = {"best": Best}


# They change how long a run takes; its result, at most by rounding (the threads).
_MAY_DIFFER = ("config.checkpoint_every_seconds", "request.calibrate")
_HARMLESS = ("num_workers", "max_cache_batches", "threads")
_LIBRARIES = ("torch", "lightning-fabric", "numpy", "pyarrow")


@dataclass(kw_only=True)
class _Process:
    """What each process saved of its own."""

    position: Position
    sums: EpochSums


class Checkpoints:
    """The two checkpoint files of a run's folder. Only the first process writes, but every process
    must call each method.

    The best weights stay in memory until `last` is written, so that the two always belong together,
    even after a kill between them.
    """

    def __init__(self, folder: Path, fabric: "Fabric", identity: dict[str, Any]) -> None:
        self._folder, self._fabric, self._identity = folder, fabric, identity
        self._next_best: dict[str, Tensor] | None = None
        self._random: dict[str, Tensor] = {}

    @property
    def last(self) -> Path:
        return self._folder / LAST

    def keep_best(self, model: nn.Module) -> None:
        """Marks these weights as the best so far; they reach the disk with the next `save`."""
        if self._fabric.is_global_zero:
            self._next_best = {
                name: value.detach().to("cpu", copy=True)
                for name, value in model.state_dict().items()
            }

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        precision: "Precision",
        state: RunState,
        plan: HardwarePlan,
    ) -> None:
        """Only fp16 has precision state (its loss scaler)."""
        mine = {"position": asdict(state.position), "sums": asdict(state.sums)}
        each = gather(self._fabric, (mine, random_state(self._fabric.device)))
        if self._fabric.is_global_zero:
            about = {
                **self._identity,
                "plan": plan.to_dict(),
                "state": asdict(state),
                "processes": [process for process, _ in each],
                "scaler": precision.state_dict(),
            }
            tensors = _prefixed("model", model.state_dict())
            tensors |= _prefixed("optimizer", optimizer_tensors(optimizer, model))
            for rank, (_, random) in enumerate(each):
                tensors |= _prefixed(f"random/{rank}", random)
            self._write(tensors, about, state)
        wait_for_all(self._fabric)

    def _write(self, tensors: dict[str, Tensor], about: dict[str, Any], state: RunState) -> None:
        if self._next_best is not None and state.best is not None:
            best = asdict(state.best)
            write_model(self._folder / NEXT_BEST, self._next_best, {**self._identity, "best": best})
        write_model(self.last, tensors, about)
        self._next_best = None
        settle_best(self._folder, state)

    def restore(self, model: nn.Module, optimizer: Optimizer, precision: "Precision") -> RunState:
        """Restores weights, optimizer and random state; returns the training state that goes with
        them."""
        saved = read_checkpoint(self.last)
        rank, scaler = self._fabric.global_rank, saved.about["scaler"]
        state = _read_state(saved, rank)
        load_weights(model, saved, prefix="model/")
        load_optimizer_state(optimizer, model, saved)
        if scaler.keys() != precision.state_dict().keys():
            raise _damaged(saved.path, "its loss scaler is incomplete")
        if scaler:
            precision.load_state_dict(scaler)
        self._random = _read_random(saved, rank, self._fabric.device)
        if self._fabric.is_global_zero:
            settle_best(self._folder, state)
        wait_for_all(self._fabric)
        return state

    def restore_random(self) -> None:
        """Restore the checkpoint's random state. Call this after reopening the epoch, which draws
        random numbers."""
        restore_random_state(self._random, self._fabric.device)

    def load_best(self, model: nn.Module) -> None:
        load_weights(model, read_model(self._folder / BEST))


def read_checkpoint(path: Path) -> ModelFile:
    """A `last.safetensors` whose description is complete. Raises StoreError if it is damaged."""
    saved = read_model(path)
    check_about(
        path, saved.about, _RUN, what="a checkpoint of this version of clew", advice=_ADVICE
    )
    return saved


def read_settings(folder: Path) -> dict[str, Any]:
    """The `settings` that the run in a folder was started with. Raises StoreError if its checkpoint
    is damaged."""
    return read_checkpoint(folder / LAST).about["settings"]


def _read_state(saved: ModelFile, rank: int) -> RunState:
    try:
        state = RunState.from_dict(saved.about["state"])
        processes = read_as(list[_Process], without_nan(saved.about["processes"]), "processes")
    except ValueError as error:
        raise _damaged(saved.path, str(error)) from None
    if rank >= len(processes):
        raise _damaged(
            saved.path,
            f"it has the positions of {len(processes)} processes, but not of process {rank + 1}",
        )
    state.position, state.sums = processes[rank].position, processes[rank].sums
    return state


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: ModelFile) -> None:
    """Restore the optimizer of a model. Raises StoreError if the file has another state."""
    kinds = _under("optimizer", saved.kinds)
    wanted = optimizer_shapes(model, kinds)
    for name, shape in wanted.items():
        if name not in kinds or kinds[name].shape != shape or kinds[name].dtype[0] not in "FB":
            raise _damaged(saved.path, f"the optimizer's {name} has another shape or type")
    tensors = saved.read(f"optimizer/{name}" for name in wanted)
    load_optimizer(optimizer, model, _under("optimizer", tensors))


def _read_random(saved: ModelFile, rank: int, device: torch.device) -> dict[str, Tensor]:
    kinds = _under(f"random/{rank}", saved.kinds)
    if any(math.prod(kind.shape) > _MOST_RANDOM for kind in kinds.values()):
        raise _damaged(saved.path, "its random state is too large")
    state = _under(f"random/{rank}", saved.read(f"random/{rank}/{name}" for name in kinds))
    try:
        check_random_state(state, device)
    except ValueError as error:
        raise _damaged(saved.path, str(error)) from None
    return state


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(f'the checkpoint "{path}" is damaged ({reason}): {_ADVICE}.')


def settle_best(folder: Path, state: RunState) -> None:
    """Promotes the pending best weights if the `last` on disk mentions them; deletes them if they
    come from steps lost in a kill."""
    new = folder / NEXT_BEST
    if not new.exists():
        return
    about = read_model(new).about
    check_about(new, about, _BEST, what="the best epoch of a run", advice=_ADVICE)
    if state.best is not None and about["best"]["epoch"] == state.best.epoch:
        new.replace(folder / BEST)
    else:
        new.unlink()


def load_weights(model: nn.Module, saved: ModelFile, prefix: str = "") -> None:
    """Load the weights into the model. Raises SettingsMismatchError if they belong to another
    model, StoreError if they are damaged."""
    name = type(model).__name__
    try:
        saved.check(model, name=name, prefix=prefix)
    except StoreError as error:
        raise SettingsMismatchError(
            f'the weights in "{saved.path}" belong to a different network: use the same settings, '
            f"or another output folder.\n{error}"
        ) from error
    saved.load_into(model, name=name, prefix=prefix)


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    return {
        name.removeprefix(f"{prefix}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}/")
    }


def describe_run(
    model: nn.Module, config: TrainConfig, request: PlanRequest, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that identifies a run, as it reads back from JSON: without tuples and paths."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    run = {
        "clew": __version__,
        "model": {"class": type(model).__name__, "parameters": shapes},
        "config": asdict(config),
        "request": request.describe(),
        "settings": dict(settings),
    }
    return json.loads(json.dumps(run, default=str))


def refuse_other_run(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run that was started with different settings: raises SettingsMismatchError
    with both values of every difference."""
    if before["request"]["batch_size"] is None and now["request"]["batch_size"] is not None:
        # A batch size that the plan chose may now be requested explicitly, even split into other
        # micro-batches.
        chosen = {name: before["plan"][name] for name in ("batch_size", "grad_accum")}
        before = {**before, "request": before["request"] | chosen}
    different = find_differences(_comparable(before), _comparable(now), _MAY_DIFFER)
    # A network of another size has other weights: the setting explains it better than their shapes.
    by_choice = [one for one in different if not one.name.startswith("model.parameters.")]
    different = by_choice or different
    if different:
        raise SettingsMismatchError(
            f'the run in "{folder}" was started with different settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same settings to resume it, or another output folder to start over."
        )


def adapt_plan(plan: HardwarePlan, before: PlanRequest, now: PlanRequest) -> HardwarePlan:
    """The saved plan, updated with newly requested choices that do not change the result."""
    changes = {name: getattr(now, name) for name in _HARMLESS}
    if _parts(now) != _parts(before):
        changes["batch_size"], changes["grad_accum"] = _parts(now)
    for name, value in changes.items():
        if value is not None and value != getattr(before, name):
            plan = plan.change(name, value, "requested when the run was resumed")
    return plan


def _parts(request: PlanRequest) -> tuple[int | None, int]:
    return request.batch_size, request.grad_accum or 1


def _comparable(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must match. The same effective batch may be split into other
    micro-batches."""
    request = {name: value for name, value in run["request"].items() if name not in _HARMLESS}
    if request["batch_size"] is not None:
        request["batch_size * grad_accum"] = request["batch_size"] * (request["grad_accum"] or 1)
        del request["batch_size"], request["grad_accum"]
    wanted = ("model", "config", "settings")
    return {name: run[name] for name in wanted} | {"request": request}


def read_versions(*more: str) -> dict[str, str]:
    """Versions of clew, Python, the libraries every run uses and `more` of them, and the GPU.
    "unknown" where none can be found."""
    found = {}
    for name in (*_LIBRARIES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # bundled with another: lightning_fabric in pytorch-lightning
            found[name] = "unknown"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"clew": __version__, "python": platform.python_version(), **found, "gpu": gpu}
