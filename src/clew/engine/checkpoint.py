"""`last.safetensors`, from which a run resumes, and `best.safetensors`, the weights to use."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from clew.engine.feed import Position
from clew.engine.folders import BEST, LAST, NEXT_BEST
from clew.engine.model_files import read_about, read_model, write_model
from clew.engine.optimizer import load_optimizer, optimizer_tensors
from clew.engine.planning.plan import HardwarePlan
from clew.engine.processes import gather
from clew.engine.seeding import random_state, restore_random_state
from clew.engine.state import EpochSums, RunState
from clew.errors import SettingsMismatchError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clew.engine.precision import Precision


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
        self._fabric.barrier()

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
        saved = read_model(self.last)
        tensors, about = saved.tensors, saved.about
        rank = self._fabric.global_rank
        state = RunState.from_dict(about["state"])
        mine = about["processes"][rank]
        state.position, state.sums = Position(**mine["position"]), EpochSums(**mine["sums"])
        load_weights(parts.model, _under("model", tensors), self.last)
        load_optimizer(parts.optimizer, parts.model, _under("optimizer", tensors))
        if about["scaler"]:
            parts.precision.load_state_dict(about["scaler"])
        self._random = _under(f"random/{rank}", tensors)
        if self._fabric.is_global_zero:
            settle_best(self._folder, state)
        self._fabric.barrier()
        return state

    def restore_random(self) -> None:
        """Restore the checkpoint's random state. Call this after reopening the epoch, which draws
        random numbers."""
        restore_random_state(self._random, self._fabric.device)

    def load_best(self, model: nn.Module) -> None:
        load_weights(model, read_model(self._folder / BEST).tensors, self._folder / BEST)


def settle_best(folder: Path, state: RunState) -> None:
    """Promotes the pending best weights if the `last` on disk mentions them; deletes them if they
    come from steps lost in a kill."""
    new = folder / NEXT_BEST
    if not new.exists():
        return
    if state.best is not None and read_about(new)["best"]["epoch"] == state.best.epoch:
        new.replace(folder / BEST)
    else:
        new.unlink()


def load_weights(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Load the weights into the model. Raises SettingsMismatchError if they belong to another
    model."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise SettingsMismatchError(
            f'the weights in "{source}" belong to a different network: use the same settings, '
            f"or another output folder.\n{error}"
        ) from error


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}/")
    }
