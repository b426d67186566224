"""`last.safetensors`, from which a run resumes, and `best.safetensors`, the weights to use."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.base.errors import SettingsMismatchError, StoreError
from clew.base.typed_json import read_as, without_nan
from clew.engine.config import PlanRequest
from clew.engine.feed import Position
from clew.engine.folders import BEST, LAST, NEXT_BEST
from clew.engine.model_files import (
    ModelFile,
    Wanted,
    check_about,
    read_model,
    write_model,
)
from clew.engine.optimizer import load_optimizer, optimizer_shapes, optimizer_tensors
from clew.engine.planning.plan import HardwarePlan
from clew.engine.processes import gather, wait_for_all
from clew.engine.seeding import check_random_state, random_state, restore_random_state
from clew.engine.state import Best, EpochSums, RunState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clew.engine.precision import Precision


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


@dataclass(kw_only=True)
class _Process:
    """What each process saved of its own."""

    position: Position
    sums: EpochSums


@dataclass(kw_only=True)
class Parts:
    """What changes while a run trains. Only fp16 has precision state (its loss scaler)."""

    model: nn.Module
    optimizer: Optimizer
    precision: "Precision"


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

    def save(self, parts: Parts, state: RunState, plan: HardwarePlan) -> None:
        mine = {"position": asdict(state.position), "sums": asdict(state.sums)}
        each = gather(self._fabric, (mine, random_state(self._fabric.device)))
        if self._fabric.is_global_zero:
            about = {
                **self._identity,
                "plan": plan.to_dict(),
                "state": state.to_dict(),
                "processes": [process for process, _ in each],
                "scaler": parts.precision.state_dict(),
            }
            tensors = _prefixed("model", parts.model.state_dict())
            tensors |= _prefixed("optimizer", optimizer_tensors(parts.optimizer, parts.model))
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

    def restore(self, parts: Parts) -> RunState:
        """Restores weights, optimizer and random state; returns the training state that goes with
        them."""
        saved = read_checkpoint(self.last)
        rank = self._fabric.global_rank
        state = _read_state(saved, rank)
        load_weights(parts.model, saved, prefix="model/")
        load_optimizer_state(parts.optimizer, parts.model, saved)
        self._load_scaler(parts, saved)
        self._random = _read_random(saved, rank, self._fabric.device)
        if self._fabric.is_global_zero:
            settle_best(self._folder, state)
        wait_for_all(self._fabric)
        return state

    def _load_scaler(self, parts: Parts, saved: ModelFile) -> None:
        scaler, wanted = saved.about["scaler"], parts.precision.state_dict()
        if scaler.keys() != wanted.keys():
            raise _damaged(saved.path, "its loss scaler is incomplete")
        if scaler:
            parts.precision.load_state_dict(scaler)

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
    if state.best is not None and _best_epoch(new) == state.best.epoch:
        new.replace(folder / BEST)
    else:
        new.unlink()


def _best_epoch(path: Path) -> int:
    about = read_model(path).about
    check_about(path, about, _BEST, what="the best epoch of a run", advice=_ADVICE)
    return int(about["best"]["epoch"])


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
