"""Delivers batches to the training step: opened as planned, read in groups from any position in an
epoch, and copied to the device while it works on the previous batch."""

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from clew.base.errors import InputError
from clew.base.typed_json import Count
from clew.engine.batches import count_samples, move, named_tensors
from clew.engine.planning.plan import HardwarePlan
from clew.engine.protocols import Batches, LoadSettings, OpenBatches
from clew.engine.seeding import seed_epoch, seed_generators

# How many steps the host may run ahead of a GPU: enough that the GPU never waits, few enough that
# batches do not pile up in its memory.
_AHEAD = 2


class Courier:
    """Moves batches to the device. This one is for the CPU, where they already are."""

    def __init__(self, device: torch.device, channels_last: bool) -> None:
        self._device, self._channels_last = device, channels_last

    def bring(self, batch: Any) -> Any:
        """The batch on the device, ready for what is launched next."""
        if not self._channels_last:
            return batch
        return move(batch, self._device, channels_last=True)

    def keep(self, read: Any) -> None:
        """The last launched step uses these batches: they must stay alive until it has run."""

    def is_idle(self) -> bool:
        """Whether the device has nothing left to do."""
        return True


class _CudaCourier(Courier):
    """Copies batches to the GPU on a separate CUDA stream."""

    def __init__(self, device: torch.device, channels_last: bool) -> None:
        super().__init__(device, channels_last)
        self._stream = torch.cuda.Stream(device)
        self._launched: deque[tuple[torch.cuda.Event, Any]] = deque()

    def bring(self, batch: Any) -> Any:
        with torch.cuda.stream(self._stream):
            moved = move(batch, self._device, non_blocking=True, channels_last=self._channels_last)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for _, tensor in named_tensors(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return moved

    def keep(self, read: Any) -> None:
        """Keep a reference to the batches until they have been copied: a loader reuses memory that
        nothing refers to."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._launched.append((event, read))
        if len(self._launched) > _AHEAD:
            self._launched.popleft()[0].synchronize()

    def is_idle(self) -> bool:
        return not self._launched or self._launched[-1][0].query()


def build_courier(device: torch.device, *, channels_last: bool = False) -> Courier:
    kind = _CudaCourier if device.type == "cuda" else Courier
    return kind(device, channels_last)


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
        self._courier = build_courier(device, channels_last=channels_last)
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


class Source:
    """Batches that are opened once the plan is known, or that the caller has already opened."""

    def __init__(self, given: Batches | OpenBatches, *, seed: int, shuffle: bool) -> None:
        self._given, self._seed, self._shuffle = given, seed, shuffle

    @property
    def is_ready_made(self) -> bool:
        """Whether the caller passed a ready-made loader, whose batch size is fixed."""
        return not callable(self._given)

    def open(self, plan: HardwarePlan) -> Batches:
        """Open the batches as planned. Raises InputError if they are not split among the
        processes."""
        batches = (
            self._given(load_settings(plan, seed=self._seed, shuffle=self._shuffle))
            if callable(self._given)
            else self._given
        )
        if plan.processes > 1 and _count_sharing(batches) != plan.processes:
            raise InputError(
                f"{plan.processes} processes train together, but this {type(batches).__name__} "
                "would give every process all samples: pass a function that opens a clew Loader, "
                "or a DataLoader with a DistributedSampler, after the process group is "
                "initialized."
            )
        if not len(batches):
            raise InputError("there are no batches: check the data and its split.")
        return batches


def load_settings(plan: HardwarePlan, *, seed: int = 0, shuffle: bool = False) -> LoadSettings:
    """The part of the plan that a loader needs."""
    return LoadSettings(
        batch_size=plan.process_batch,
        num_workers=plan.num_workers,
        persistent_workers=plan.persistent_workers,
        prefetch_factor=plan.prefetch_factor,
        pin_memory=plan.pin_memory,
        max_cache_batches=plan.max_cache_batches,
        seed=seed,
        shuffle=shuffle,
    )


def _count_sharing(batches: Batches) -> int:
    """The number of processes that share these batches: that of their sampler or rank, otherwise
    1."""
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.num_replicas
    return getattr(getattr(batches, "rank", None), "count", 1)
