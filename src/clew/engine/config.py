"""What the user decides (how to train, and which parts of the hardware plan are fixed), and what a
model, its batches, and the function that opens them must provide."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from clew.base.commands import TrainingHardware
from clew.base.errors import InputError
from clew.base.settings import check_numbers

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

# The file with the network of the best epoch.
BEST = "best.safetensors"
Monitor = Literal["auroc", "loss", "accuracy"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Hyperparameters of a run. Two runs that differ in any of them, except
    `checkpoint_every_seconds`, give different networks.

    `lr` None is 1e-3 for an effective batch of 32, and scales with the square root of the batch
    size; it is the peak of a One-Cycle schedule whose warm-up takes `warmup_fraction` of all steps.
    `patience` is the number of epochs without a better `monitor` (on validation) after which the
    run stops; None disables early stopping.

    `monitor` is the validation metric that chooses the best epoch: auroc, loss or accuracy.
    `weight_decay` and `betas` are those of AdamW; `max_norm` is the norm at which the gradient is
    clipped. `checkpoint_every_seconds` is the longest time between two checkpoints. Raises
    InputError for an invalid value.
    """

    epochs: int = 50
    lr: float | None = None
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_fraction: float = 0.1
    max_norm: float = 1.0
    patience: int | None = 10
    seed: int = 0
    monitor: Monitor = "auroc"
    checkpoint_every_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_numbers(self)
        fraction, monitors = "at least 0 and less than 1", get_args(Monitor)
        checks: dict[str, tuple[bool, str]] = {
            "epochs": (self.epochs >= 1, "1 or more"),
            "lr": (self.lr is None or 0 < self.lr < math.inf, "greater than 0 (1e-3 is typical)"),
            "weight_decay": (self.weight_decay >= 0, "0 or more"),
            "betas": (all(0 <= b < 1 for b in self.betas), f"two numbers, each {fraction}"),
            "warmup_fraction": (0 <= self.warmup_fraction < 1, fraction),
            "max_norm": (self.max_norm > 0, "greater than 0"),
            "patience": (self.patience is None or self.patience >= 1, "1 or more, or none"),
            "seed": (0 <= self.seed < 1 << 63, "0 or more"),
            "monitor": (self.monitor in monitors, f"one of {', '.join(monitors)}"),
            "checkpoint_every_seconds": (self.checkpoint_every_seconds >= 0, "0 or more"),
        }
        for name, (is_right, wanted) in checks.items():
            _check(name, getattr(self, name), is_right, wanted)

    def peak_lr(self, effective_batch: int) -> float:
        return self.lr if self.lr is not None else 1e-3 * math.sqrt(effective_batch / 32)


@dataclass(frozen=True, kw_only=True)
class PlanRequest(TrainingHardware):
    """The choices of the hardware plan that the user fixes; None leaves a choice to the plan.

    `device` is "cpu", "cuda" or "cuda:1". `precision` is fp32, tf32, bf16 or fp16; `amp=True`
    requests the device's 16-bit format, `amp=False` excludes it. `batch_size` is the total over all
    processes, `grad_accum` the number of micro-batches per optimizer step, `num_workers` the number
    of reading threads, `max_cache_batches` the number of shards kept open, `threads` the CPU
    threads that compute. `calibrate=False` skips the measurements. `reasons` says why the program
    itself has fixed a choice, by name. Raises InputError for an invalid value.
    """

    precision: Precision | None = None
    calibrate: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision is not None:
            known = get_args(Precision)
            _check("precision", self.precision, self.precision in known, f"one of {known}")
        if self.amp is not None and self.precision is not None:
            mixed = self.precision in ("bf16", "fp16")
            if mixed != self.amp:
                raise InputError(
                    f'`precision="{self.precision}"` and `amp={self.amp}` contradict each other: '
                    "set only one of them."
                )

    def describe(self) -> dict[str, Any]:
        """What is requested, as plain data."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}


def _check(name: str, value: object, is_right: bool, wanted: str) -> None:
    if not is_right:
        raise InputError(f"it must be {wanted}.", setting=name, value=value)


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """A model's output for one batch of training or evaluation.

    `loss` is the mean over the batch's samples: only then do accumulated micro-batches and several
    processes give exactly the gradient of the whole batch. `scores` are logits, `labels` the true
    labels; without both, only the losses are evaluated. `metrics` are further values to report.
    """

    loss: 'Float[Tensor, ""]'
    scores: 'Float[Tensor, " batch"] | Float[Tensor, "batch classes"] | None' = None
    labels: 'Shaped[Tensor, " batch"] | None' = None
    metrics: 'dict[str, Float[Tensor, ""]]' = field(default_factory=dict)


@runtime_checkable
class Trainable(Protocol):
    """What `fit` can train: an `nn.Module` with a `training_step`. Evaluation calls it too, in eval
    mode and under no_grad().

    It may also have `learning_rate_scale(name)`: the share of the learning rate that the parameter
    of this name is trained with, for example less for a pretrained body than for a new head.
    """

    def training_step(self, batch: Any) -> StepOutput: ...


@runtime_checkable
class Batches(Protocol):
    """What `fit` reads batches from: clew's Loader, PyTorch's DataLoader, or any iterable with a
    length.

    It may also have `set_epoch(n)`, and `state_dict()` with `load_state_dict(state)` for the
    position in the epoch; without these, a resumed run reads the epoch's first batches again and
    skips them.
    """

    def __len__(self) -> int:
        """Batches per epoch."""

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The settings that a loader is opened with: the loading part of the plan. `batch_size` is per
    process; `num_workers` threads each read `prefetch_factor` batches ahead; `max_cache_batches` is
    the number of shards to keep open, None for all."""

    batch_size: int
    num_workers: int = 0
    persistent_workers: bool = False
    prefetch_factor: int = 2
    pin_memory: bool = False
    max_cache_batches: int | None = None
    seed: int = 0
    shuffle: bool = False


OpenBatches = Callable[[LoadSettings], Batches]
"Lets the plan choose the batch size, and each process open its share."
