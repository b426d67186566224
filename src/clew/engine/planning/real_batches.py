"""A few of the run's own batches, of any size, for calibration."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from statistics import mean
from typing import Any

from clew.base.errors import InputError
from clew.engine.batches import count_samples, named_tensors
from clew.engine.protocols import Batches, LoadSettings, OpenBatches
from clew.engine.step import shapes_of

_TIMED_BATCHES = 3
_SHAPE_BATCHES = 8
_ENOUGH_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Whole batches as they were read, and how long one took."""

    batches: list[Any]
    seconds: float


class RealBatches:
    """Reads from loaders that it opens itself, or from a ready-made one, whose position it
    restores.

    `settings` open them, except for the batch size. `own_size` is the ready-made loader's batch
    size over all processes, None if any is possible; `samples` are those of an epoch.
    """

    def __init__(
        self,
        batches: OpenBatches | Batches,
        settings: LoadSettings,
        *,
        processes: int = 1,
        samples: int | None = None,
    ) -> None:
        self._batches, self._settings, self._processes = batches, settings, processes
        self._readings: dict[int, Reading] = {}
        self.own_size: int | None = None
        if not callable(batches):
            self.own_size = count_samples(self.read(0).batches[0]) * processes
            self._readings = {self.own_size: self._readings[0]}
        self.samples = self._count_samples() if samples is None else samples

    def read(self, size: int) -> Reading:
        """Up to three batches that all have `size` samples over all processes; only those of the
        last requested size are kept."""
        if size not in self._readings:
            self._readings = {size: self._read(size, _TIMED_BATCHES)}
        return self._readings[size]

    def shapes_differ(self, size: int, pad: Callable[[Any], Any] | None) -> bool:
        """Whether no two of the first batches have the same shape, padded as the model pads them: a
        recorded step would then hardly ever be reused."""
        batches = self._read(size, _SHAPE_BATCHES).batches
        shapes = {shapes_of(pad(batch) if pad else batch) for batch in batches}
        return len(batches) == _SHAPE_BATCHES and len(shapes) == _SHAPE_BATCHES

    def _read(self, size: int, count: int) -> Reading:
        with self._opened(size) as batches:
            timed = _take(_timed(batches), count)
        if not timed:
            raise InputError("the training data contains no batches: check the data and its split.")
        most = max(count_samples(batch) for batch, _ in timed)
        whole = [batch for batch, _ in timed if count_samples(batch) == most]
        # The mean: a loader may read several batches at once and then give them out.
        return Reading(batches=whole, seconds=mean(seconds for _, seconds in timed))

    @contextmanager
    def _opened(self, size: int) -> Iterator[Batches]:
        if not callable(self._batches):
            with _same_place(self._batches):
                yield self._batches
            return
        share = max(1, size // self._processes)
        yield self._batches(replace(self._settings, batch_size=share))

    def _count_samples(self) -> int:
        size = self.own_size or self._settings.batch_size * self._processes
        with self._opened(size) as batches:
            return len(batches) * size


def _timed(batches: Batches) -> Iterator[tuple[Any, float]]:
    iterator = iter(batches)
    while True:
        started = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - started


def _take(timed: Iterator[tuple[Any, float]], count: int) -> list[tuple[Any, float]]:
    """The first ones; two are enough for large batches."""
    taken, size = [], 0
    for batch, seconds in islice(timed, count):
        taken.append((batch, seconds))
        size += sum(tensor.nbytes for _, tensor in named_tensors(batch))
        if len(taken) >= 2 and size > _ENOUGH_BYTES:
            break
    return taken


@contextmanager
def _same_place(batches: Any) -> Iterator[None]:
    """Restores the position of a loader that knows its position in an epoch."""
    keeps = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
    state = batches.state_dict() if keeps else None
    try:
        yield
    finally:
        if keeps:
            batches.load_state_dict(state)
