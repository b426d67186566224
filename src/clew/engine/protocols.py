"""The interfaces of the engine: what a model, its batches, and the function that opens them must
provide."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Shaped
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """A model's output for one batch.

    `loss` is the mean over the batch's samples: only then do accumulated micro-batches and several
    processes give exactly the gradient of the whole batch. `scores` are logits.
    """

    loss: Float[Tensor, ""]
    scores: Float[Tensor, " batch"] | Float[Tensor, "batch classes"] | None = None
    labels: Shaped[Tensor, " batch"] | None = None
    metrics: dict[str, Float[Tensor, ""]] = field(default_factory=dict)


@runtime_checkable
class Trainable(Protocol):
    """An `nn.Module` with this one method; evaluation calls it too, under eval() and no_grad()."""

    def training_step(self, batch: Any) -> StepOutput: ...


@runtime_checkable
class Batches(Protocol):
    """clew's Loader, PyTorch's DataLoader, or anything like them.

    May also have `set_epoch(n)`, and `state_dict()` with `load_state_dict(state)` for the position
    in the epoch; without these, a resumed run reads the epoch's first batches again and skips them.
    """

    def __len__(self) -> int:
        """Batches per epoch."""

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The part of the plan that a loader needs. `batch_size` is per process."""

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
