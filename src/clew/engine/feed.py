"""Batches in groups, one group an optimiser step: from any place of an epoch, on the device."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from clew.engine.batches import count_samples
from clew.engine.courier import build_courier
from clew.engine.protocols import Batches
from clew.engine.seeding import seed_epoch, seed_generators
from clew.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in an epoch: what this process has read of it, and the loader's own state."""

    epoch: int
    samples: int = 0
    loader: dict[str, Any] | None = None


@dataclass(kw_only=True, slots=True)
class Group:
    """The micro-batches of one step: as they were read, and where the step wants them."""

    read: list[Any]
    batches: list[Any] = field(default_factory=list)


class Feed:
    """One process's batches, epoch after epoch, `grad_accum` at a time.

    An epoch's random numbers are fixed when it is opened, so any order of samples comes again.
    `wait_seconds` is how long the loop was blocked on the next batch while nothing else ran: on
    a GPU that counts only when the device had finished all its work by the time the batch came.
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
        """Go to a place; random numbers are then those of the epoch's beginning."""
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
                f"{position.samples:,} samples of epoch {position.epoch + 1} were used already, "
                f"but the batches there end at {self._samples:,}: resume with the same data and "
                f"batch size."
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
        """To be called after each step: what was read for it is kept until the step has run."""
        group.batches = []
        self._courier.keep(group.read)

    def position(self) -> Position:
        """After the last group that was given out. At the end of an epoch, which a last group with
        too few batches has seen, a loader speaks of the next one."""
        state = None if self._is_over else _state(self._batches)
        return Position(epoch=self._epoch, samples=self._samples, loader=state)

    def close(self) -> None:
        """End the iteration; a loader's threads end with it."""
        if hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator = iter(())

    def _read_timed(self) -> Any:
        begun = time.perf_counter()
        batch = self._read()
        if batch is not None and self._courier.is_idle():
            self.wait_seconds += time.perf_counter() - begun
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
    """The loader's own state where it has one that JSON keeps as it is."""
    if not hasattr(batches, "state_dict") or not hasattr(batches, "load_state_dict"):
        return None
    state = batches.state_dict()
    try:
        return state if json.loads(json.dumps(state)) == state else None
    except (TypeError, ValueError):
        return None
