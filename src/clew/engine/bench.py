"""Times variants of a step against each other, on copies of the model and a few of the run's own
batches, and records every timing; afterwards all state is restored."""

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from clew.base.errors import InputError
from clew.base.memory import (
    free_memory,
    is_out_of_memory,
    measure_peak_bytes,
    none_if_out_of_memory,
)
from clew.engine.config import Batches, LoadSettings, OpenBatches, TrainConfig
from clew.engine.feed import count_samples, move, named_tensors, same_random_numbers
from clew.engine.plan import StepVariant, Timing
from clew.engine.setup import build_optimizer, place_model
from clew.engine.step import RUNS_BEFORE, build_step, restored_precision, shapes_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# The time budget until the length of the run is known.
_FIRST_SECONDS = 2.0
_ROUNDS = 5
_FEWEST_ROUNDS = 2
_STEPS_A_TRIAL = _ROUNDS + 3
# In shorter blocks, starting and stopping the clock would distort the timing.
_BLOCK_SECONDS = 0.02
_MAX_BLOCK_STEPS = 50


_TIMED_BATCHES = 3
_SHAPE_BATCHES = 8
_ENOUGH_BYTES = 1 << 28


class Trial:
    """Times one variant of a step on a copy of the model. Its weights never change, because the
    learning rate is 0. The optimizer's other settings do not affect the time."""

    def __init__(
        self, model: nn.Module, variant: StepVariant, batches: list[Any], fabric: "Fabric"
    ) -> None:
        model = place_model(
            copy.deepcopy(model).train(),
            fabric.device,
            channels_last=variant.channels_last,
            gradient_checkpointing=variant.gradient_checkpointing,
        )
        optimizer = build_optimizer(model, TrainConfig(), lr=0.0, capturable=variant.cuda_graph)
        self._step = build_step(model, variant, optimizer, fabric)
        self._device = fabric.device
        self._endless = itertools.cycle(batches)
        self._warm_up_steps = 1
        if variant.compile or variant.cuda_graph:  # every shape is compiled or recorded separately
            self._warm_up_steps = (RUNS_BEFORE + 1) * len(batches)
        self.guess = self.first_seconds = 0.0

    def warm_up(self) -> None:
        """Run steps until setup, compilation and recording are done; `first_seconds` is the time
        these took in addition to the steps."""
        started = time.perf_counter()
        for _ in range(self._warm_up_steps):
            self.run()
        self._wait()
        first = time.perf_counter() - started
        self.guess = self.run_block(1)
        self.first_seconds = max(0.0, first - self._warm_up_steps * self.guess)

    def run_block(self, steps: int) -> float:
        """Seconds per step."""
        self._wait()
        started = time.perf_counter()
        for _ in range(steps):
            self.run()
        self._wait()
        return (time.perf_counter() - started) / steps

    def run(self) -> None:
        self._step.run([next(self._endless)], 0.0)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Footprint:
    """Estimates from the GPU memory that trials have taken since now whether another one fits next
    to them. On the CPU an idle trial takes little memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def fits_again(self) -> bool:
        if self._device.type != "cuda":
            return True
        peak = torch.cuda.max_memory_allocated(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        free = torch.cuda.mem_get_info(self._device)[0] + reserved - peak
        return free > 2 * (peak - self._before)


@contextmanager
def restored_state(device: torch.device) -> Iterator[None]:
    """Restores the random state and PyTorch's float32 matmul precision afterwards."""
    try:
        with restored_precision(), same_random_numbers(device):
            yield
    finally:
        if device.type == "cuda":
            free_memory()


class Bench:
    """Times variants of a step. `timings` holds the last timing of each variant and batch size.

    If the `plain` variant fails for any reason but memory, so would the run: that error is raised.
    Any other variant is dropped, and its timing says why.
    """

    def __init__(
        self, model: nn.Module, batches: "RealBatches", *, plain: StepVariant, device: torch.device
    ) -> None:
        self._model, self._batches = model, batches
        self._plain, self._device = plain, device
        self._fabric = _one_process(device)
        self._results: dict[tuple[StepVariant, int], Timing] = {}
        self._started = time.perf_counter()
        self.allow(_FIRST_SECONDS)

    @property
    def timings(self) -> tuple[Timing, ...]:
        return tuple(self._results.values())

    @property
    def spent_seconds(self) -> float:
        return time.perf_counter() - self._started

    def allow(self, seconds: float) -> None:
        """Starts the budget now."""
        self.budget_seconds = seconds
        self._deadline = time.perf_counter() + seconds

    @property
    def left_seconds(self) -> float:
        return self._deadline - time.perf_counter()

    def cost_of(self, variant: StepVariant, size: int, larger: int) -> float:
        """The likely time to measure a larger batch, given the timings of a smaller one."""
        reading = self._batches.read(size)
        steps = _STEPS_A_TRIAL * self.seconds([variant], size)[variant]
        return (steps + len(reading.batches) * reading.seconds) * larger / size

    def timing(self, variant: StepVariant, size: int) -> Timing | None:
        return self._results.get((variant, size))

    def seconds(self, variants: Sequence[StepVariant], size: int) -> dict[StepVariant, float]:
        """What is known about these variants, in their order."""
        known = {variant: self.timing(variant, size) for variant in variants}
        return {variant: t.seconds for variant, t in known.items() if t is not None and t.seconds}

    def time(self, variants: Sequence[StepVariant], size: int) -> dict[StepVariant, float]:
        """Seconds of a step in each variant that works.

        The one with every optimization comes right after the plainest: if time is short, those in
        between are skipped.
        """
        waiting = [*variants[:1], *reversed(variants[1:])]
        while waiting:
            trials = self._build(waiting, size)
            self._race(trials, size)
            trials.clear()
            self._free_memory()
        if any(variant.compile for variant in variants):
            torch.compiler.reset()
        return self.seconds(variants, size)

    def _race(self, trials: dict[StepVariant, Trial], size: int) -> None:
        """Time the trials in turns, so that other load on the machine slows all of them equally."""
        blocks = {
            variant: max(1, min(_MAX_BLOCK_STEPS, round(_BLOCK_SECONDS / max(trial.guess, 1e-9))))
            for variant, trial in trials.items()
        }
        round_seconds = sum(trials[variant].guess * steps for variant, steps in blocks.items())
        affordable = self.left_seconds / 2 / max(round_seconds, 1e-9)
        times: dict[StepVariant, list[float]] = {variant: [] for variant in trials}
        for number in range(int(max(_FEWEST_ROUNDS, min(_ROUNDS, affordable)))):
            if number and self.left_seconds < 0:
                break
            for variant, trial in trials.items():
                times[variant].append(trial.run_block(blocks[variant]))
        for variant, values in times.items():
            self._note(
                variant, size, seconds=median(values), compiling=trials[variant].first_seconds
            )

    def measure_peak(self, variant: StepVariant, size: int) -> int | None:
        """Peak bytes of a step beyond weights and optimizer; None if it does not fit."""

        def measure() -> int:
            trial = self.make_trial(replace(variant, cuda_graph=False, compile=False), size)
            trial.run()
            return measure_peak_bytes(trial.run, self._device)

        peak = none_if_out_of_memory(measure)
        self._free_memory()
        return peak

    def _build(self, waiting: list[StepVariant], size: int) -> dict[StepVariant, Trial]:
        """Trials of the first waiting variants, as many as a GPU holds side by side. When time is
        up, the others are not tried."""
        trials: dict[StepVariant, Trial] = {}
        footprint = Footprint(self._device)
        while waiting and (not trials or footprint.fits_again()):
            if trials and self.left_seconds < 0:
                waiting.clear()
                break
            variant = waiting.pop(0)
            try:
                trial = self.make_trial(variant, size)
                trial.warm_up()
                trials[variant] = trial
            except Exception as error:  # a variant may fail where the plain one works
                if variant == self._plain and not is_out_of_memory(error):
                    raise
                self._note(variant, size, dropped=_why(error))
            if variant not in trials:
                self._free_memory()  # only now: the error itself kept memory alive
        return trials

    def make_trial(self, variant: StepVariant, size: int) -> Trial:
        batches = [
            move(batch, self._device, channels_last=variant.channels_last)
            for batch in self._batches.read(size).batches
        ]
        return Trial(self._model, variant, batches, self._fabric)

    def _free_memory(self) -> None:
        # CPU memory is freed without this, and garbage collection is slow.
        if self._device.type == "cuda":
            free_memory()

    def _note(
        self,
        variant: StepVariant,
        size: int,
        *,
        seconds: float | None = None,
        compiling: float = 0.0,
        dropped: str = "",
    ) -> None:
        self._results.pop((variant, size), None)
        self._results[variant, size] = Timing(
            way=str(variant),
            batch_size=size,
            seconds=seconds,
            compile_seconds=compiling if variant.compile and seconds else None,
            dropped=dropped,
        )


def _why(error: BaseException) -> str:
    """Why a variant was dropped, in one line."""
    if is_out_of_memory(error):
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:200]


def _one_process(device: torch.device) -> "Fabric":
    """A Fabric for this process alone. Processes that train together are timed separately, since
    they would wait for each other."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment

    devices: Any = 1 if device.type == "cpu" else [device.index or 0]
    return Fabric(accelerator=device.type, devices=devices, plugins=[LightningEnvironment()])


class Reading(NamedTuple):
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
        if samples is None:
            size = self.own_size or settings.batch_size * processes
            with self._opened(size) as opened:
                samples = len(opened) * size
        self.samples = samples

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
            timed = _read_timed(batches, count)
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


def _read_timed(batches: Batches, most: int) -> list[tuple[Any, float]]:
    """The first batches, and how long each took; two are enough if they are large."""
    taken: list[tuple[Any, float]] = []
    iterator, size = iter(batches), 0
    while len(taken) < (2 if size > _ENOUGH_BYTES else most):
        started = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        taken.append((batch, time.perf_counter() - started))
        size += sum(tensor.nbytes for _, tensor in named_tensors(batch))
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
