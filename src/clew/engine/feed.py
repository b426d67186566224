"""Delivers batches to the training step: opened as planned, read in groups from any position in an
epoch, copied to the device while it works on the previous batch; with random numbers that are
seeded at the start of every epoch."""

import copy
import json
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from clew.base.errors import InputError
from clew.base.typed_json import Count
from clew.engine.config import Batches, LoadSettings, OpenBatches
from clew.engine.plan import HardwarePlan

# How many steps the host may run ahead of a GPU: enough that the GPU never waits, few enough that
# batches do not pile up in its memory.
_AHEAD = 2


_ONE_A_SAMPLE = ("label", "index")
_NAMES = ("question_id", "index")


class Courier:
    """Moves batches to the device: to a GPU on a separate CUDA stream; on the CPU they already
    are."""

    def __init__(self, device: torch.device, *, channels_last: bool = False) -> None:
        self._device, self._channels_last = device, channels_last
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._launched: deque[tuple[torch.cuda.Event, Any]] = deque()

    def bring(self, batch: Any) -> Any:
        """The batch on the device, ready for what is launched next."""
        last = self._channels_last
        if self._stream is None:
            return move(batch, self._device, channels_last=True) if last else batch
        with torch.cuda.stream(self._stream):
            moved = move(batch, self._device, non_blocking=True, channels_last=last)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for _, tensor in named_tensors(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return moved

    def keep(self, read: Any) -> None:
        """Keep a reference to the batches of the last launched step until they have been copied: a
        loader reuses memory that nothing refers to."""
        if self._stream is None:
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._launched.append((event, read))
        if len(self._launched) > _AHEAD:
            self._launched.popleft()[0].synchronize()

    def is_idle(self) -> bool:
        """Whether the device has nothing left to do."""
        return not self._launched or self._launched[-1][0].query()


@dataclass(frozen=True, kw_only=True)
class Position:
    """A position in an epoch: what this process has read of it, and the loader's own state."""

    epoch: Count
    samples: Count = 0
    loader: dict[str, Any] | None = None


@dataclass(kw_only=True, slots=True)
class Group:
    """The micro-batches of one step: as they were read, and on the device."""

    read: list[Any]
    batches: list[Any] = field(default_factory=list)


class Feed:
    """One process's batches, epoch after epoch, `grad_accum` at a time.

    An epoch's random numbers are fixed when it is opened, so its order can be repeated.
    `wait_seconds` is how long the loop was blocked on the next batch while nothing else ran: on a
    GPU that counts only when the device had finished all its work by the time the batch came.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        device: torch.device,
        grad_accum: int = 1,
        seed: int = 0,
        rank: int = 0,
        channels_last: bool = False,
    ) -> None:
        self._batches, self._grad_accum = batches, grad_accum
        self._seed, self._rank = seed, rank
        self._iterator: Iterator[Any] = iter(())
        self._epoch = self._samples = 0
        self._is_over = False
        self._courier = Courier(device, channels_last=channels_last)
        self.wait_seconds = 0.0

    @property
    def groups_an_epoch(self) -> int:
        return -(-len(self._batches) // self._grad_accum)

    def open(self, position: Position) -> None:
        """Open the epoch at a position. The random state is then as at the start of the epoch."""
        self.close()
        state = position.loader
        if state is not None:
            self._batches.load_state_dict(state)  # type: ignore[attr-defined]
        _set_epoch(self._batches, position.epoch)
        seed_generators(self._batches, seed_epoch(self._seed, position.epoch, self._rank))
        self._iterator, self._is_over = iter(self._batches), False
        self._epoch, self._samples = position.epoch, position.samples if state is not None else 0
        while self._samples < position.samples:
            if self._read() is None:
                break
        if self._samples != position.samples:
            raise InputError(
                f"{position.samples:,} samples of epoch {position.epoch + 1} were already used, "
                f"but the epoch now has only {self._samples:,}: resume with the same data and "
                "batch size."
            )

    def next_group(self) -> Group | None:
        """What the next step needs; None at the end of the epoch."""
        group = Group(read=[])
        while len(group.read) < self._grad_accum:
            batch = self._read_timed()
            if batch is None:
                break
            group.read.append(batch)
            group.batches.append(self._courier.bring(batch))
        return group if group.read else None

    def step_launched(self, group: Group) -> None:
        """Call after each step: what was read for it is kept until the step has run."""
        group.batches = []
        self._courier.keep(group.read)

    def position(self) -> Position:
        """The position after the last group given out. At the end of an epoch the loader's own
        state is omitted, since it already refers to the next epoch."""
        state = None if self._is_over else _state(self._batches)
        return Position(epoch=self._epoch, samples=self._samples, loader=state)

    def close(self) -> None:
        """Ends the iteration; a loader's threads end with it."""
        if hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator = iter(())

    def _read_timed(self) -> Any:
        started = time.perf_counter()
        batch = self._read()
        if batch is not None and self._courier.is_idle():
            self.wait_seconds += time.perf_counter() - started
        return batch

    def _read(self) -> Any:
        batch = next(self._iterator, None)
        self._is_over = batch is None
        if batch is not None:
            self._samples += count_samples(batch)
        return batch


def _set_epoch(batches: Batches, epoch: int) -> None:
    for owner in (batches, getattr(batches, "sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _state(batches: Batches) -> dict[str, Any] | None:
    """The loader's own state, if it has one that survives JSON unchanged."""
    if not hasattr(batches, "state_dict") or not hasattr(batches, "load_state_dict"):
        return None
    state = batches.state_dict()
    try:
        return state if json.loads(json.dumps(state)) == state else None
    except (TypeError, ValueError):
        return None


def open_batches(
    given: Batches | OpenBatches, plan: HardwarePlan, *, seed: int, shuffle: bool
) -> Batches:
    """Open the batches as planned, unless the caller has already. Raises InputError if they are
    not split among the processes."""
    batches = given(load_settings(plan, seed=seed, shuffle=shuffle)) if callable(given) else given
    if plan.processes > 1 and _count_sharing(batches) != plan.processes:
        raise InputError(
            f"{plan.processes} processes train together, but this {type(batches).__name__} would "
            "give every process all samples: pass a function that opens a clew Loader, or a "
            "DataLoader with a DistributedSampler, after the process group is initialized."
        )
    if not len(batches):
        raise InputError("there are no batches: check the data and its split.")
    return batches


def load_settings(plan: HardwarePlan, *, seed: int = 0, shuffle: bool = False) -> LoadSettings:
    """The part of the plan that a loader needs."""
    names = {one.name for one in fields(LoadSettings)} & plan.choices.keys()
    planned = {name: getattr(plan, name) for name in names} | {"batch_size": plan.process_batch}
    return LoadSettings(**planned, seed=seed, shuffle=shuffle)


def _count_sharing(batches: Batches) -> int:
    """The number of processes that share these batches: that of their sampler or rank, otherwise
    1."""
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.num_replicas
    return getattr(getattr(batches, "rank", None), "count", 1)


def move(
    batch: Any, device: torch.device, *, non_blocking: bool = False, channels_last: bool = False
) -> Any:
    """The batch with its tensors on `device`; images `[batch, channels, height, width]` in
    channels_last if requested. Anything that is not a tensor stays unchanged."""

    def move_one(tensor: Tensor) -> Tensor:
        if channels_last and tensor.dim() == 4 and tensor.is_floating_point():
            return tensor.to(device, non_blocking=non_blocking, memory_format=torch.channels_last)
        return tensor.to(device, non_blocking=non_blocking)

    stays = device.type == "cpu" and not channels_last
    if stays and all(tensor.device.type == "cpu" for _, tensor in named_tensors(batch)):
        return batch
    return map_tensors(batch, move_one)


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor replaced; lists of names are left alone."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        if _are_names(batch):
            return batch
        values = [map_tensors(value, change) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if hasattr(batch, "to_dict"):  # PyG, whose own `to` goes through every name of every sample
        changed = copy.copy(batch)
        for name, value in batch.to_dict().items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
        return changed
    return batch


def named_tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name: "sequence", or its index in a list."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, list | tuple):
        for place, value in enumerate(() if _are_names(batch) else batch):
            yield from named_tensors(value, str(place))
    elif isinstance(batch, Mapping) or hasattr(batch, "to_dict"):
        content = batch if isinstance(batch, Mapping) else batch.to_dict()
        for key, value in content.items():
            yield from named_tensors(value, str(key))


def count_samples(batch: Any) -> int:
    """The number of samples in the batch; raises InputError when there is nothing to count."""
    for name in _ONE_A_SAMPLE:
        values = _get(batch, name)
        if values is not None:
            return len(values)
    for _, tensor in named_tensors(batch):
        return tensor.shape[0] if tensor.dim() else 1
    raise InputError(
        f"a batch of type {type(batch).__name__} contains no tensors: return a dict, a list or a "
        'PyG batch of tensors, preferably with a "label".'
    )


def sample_names(batch: Any) -> list[str]:
    """The samples' question ids, else their indices in the dataset, else empty."""
    for name in _NAMES:
        values = _get(batch, name)
        if values is not None:
            return [str(v) for v in (values.tolist() if isinstance(values, Tensor) else values)]
    return []


def _are_names(values: list[Any] | tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], str)


def _get(batch: Any, name: str) -> Any:
    if isinstance(batch, Tensor | list | tuple):
        return None
    return batch[name] if name in batch else None  # noqa: SIM401 - not every batch has get


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> int:
    """Seeds all random number generators for an epoch, differently per process. Returns the
    seed."""
    words = np.random.SeedSequence([seed, epoch, rank]).generate_state(2, np.uint32)
    derived = int(words[0]) << 31 | int(words[1]) >> 1
    random.seed(derived)
    np.random.seed(int(words[0]))
    torch.manual_seed(derived)
    return derived


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The random states of Python, NumPy and PyTorch."""
    _, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    _, words, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), place, has_gauss], dtype=torch.int64),
        # Both draw normal numbers in pairs and keep the second for later.
        "gauss": torch.tensor([cached, math.nan if gauss is None else gauss], dtype=torch.float64),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def check_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Check that a saved random state can be restored. Raises ValueError."""
    for name, known in random_state(device).items():
        saved = state.get(name)
        if saved is None and name == "cuda":
            continue
        if saved is None:
            raise ValueError(f"its random state of {name} is missing")
        if (saved.shape, saved.dtype) != (known.shape, known.dtype):
            raise ValueError(
                f"its random state of {name} has shape {list(saved.shape)} and type {saved.dtype} "
                f"instead of {list(known.shape)} and {known.dtype}"
            )
    *keys, place, has_gauss = state["numpy"].tolist()
    in_range = min(keys) >= 0 and max(keys) < 2**32 and 0 <= place <= len(keys)
    if not in_range or has_gauss not in (0, 1):  # NumPy would read beyond its own memory
        raise ValueError("the random state of NumPy is invalid")
    try:
        torch.Generator().set_state(state["torch"])
        random.Random().setstate((random.getstate()[0], tuple(state["python"].tolist()), None))
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"its random state is invalid ({error})") from None


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    cached, gauss = state["gauss"].tolist()
    version, words = random.getstate()[0], tuple(state["python"].tolist())
    random.setstate((version, words, None if math.isnan(gauss) else gauss))
    *keys, place, has_gauss = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), place, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore the random state at the end, so that the block does not change later random
    numbers."""
    before = random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)


def seed_generators(batches: Any, seed: int) -> None:
    """Seed the generators that PyTorch's loaders and samplers may have."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    owners = (
        batches,
        getattr(batches, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
