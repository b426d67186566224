"""The interfaces of the engine: what a model, its batches, and the function that opens them must
provide."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Shaped
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """A model's output for one batch of training or evaluation.

    `loss` is the mean over the batch's samples: only then do accumulated micro-batches and several
    processes give exactly the gradient of the whole batch. `scores` are logits, `labels` the true
    labels; without both, only the losses are evaluated. `metrics` are further values to report.
    """

    loss: Float[Tensor, ""]
    scores: Float[Tensor, " batch"] | Float[Tensor, "batch classes"] | None = None
    labels: Shaped[Tensor, " batch"] | None = None
    metrics: dict[str, Float[Tensor, ""]] = field(default_factory=dict)


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
