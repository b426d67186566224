"""Times variants of a step against each other on copies of the model, and records every timing;
afterwards all state is restored."""

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clew.base.memory import free_memory, is_out_of_memory
from clew.engine.batches import move
from clew.engine.config import TrainConfig
from clew.engine.memory import measure_peak_bytes
from clew.engine.optimizer import build_optimizer
from clew.engine.placement import place_model
from clew.engine.planning.plan import Timing, Way
from clew.engine.planning.real_batches import RealBatches
from clew.engine.seeding import same_random_numbers
from clew.engine.step import RUNS_BEFORE, build_step

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


class Trial:
    """Times one variant of a step on a copy of the model. Its weights never change, because the
    learning rate is 0. The optimizer's other settings do not affect the time."""

    def __init__(self, model: nn.Module, way: Way, batches: list[Any], fabric: "Fabric") -> None:
        model = place_model(
            copy.deepcopy(model).train(),
            fabric.device,
            channels_last=way.channels_last,
            gradient_checkpointing=way.gradient_checkpointing,
        )
        optimizer = build_optimizer(model, TrainConfig(), lr=0.0, capturable=way.cuda_graph)
        self._step = build_step(model, way, optimizer, fabric)
        self._device = fabric.device
        self._endless = itertools.cycle(batches)
        self._warm_up_steps = 1
        if way.compile or way.cuda_graph:  # every shape is compiled or recorded separately
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
    """Estimates from the GPU memory of the first trial whether another one fits next to it. On the
    CPU an idle trial takes little memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0

    def __enter__(self) -> "Footprint":
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None: ...

    def fits_again(self) -> bool:
        if self._device.type != "cuda":
            return True
        peak = torch.cuda.max_memory_allocated(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        free = torch.cuda.mem_get_info(self._device)[0] + reserved - peak
        return free > 2 * (peak - self._before)


@contextmanager
def left_as_it_was(device: torch.device) -> Iterator[None]:
    """Restores the random state and PyTorch's float32 matmul precision afterwards."""
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        with same_random_numbers(device):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = convolutions
            free_memory()


class Bench:
    """Times variants of a step. `timings` holds the last timing of each variant and batch size.

    If the `plain` variant fails for any reason but memory, so would the run: that error is raised.
    Any other variant is dropped, and its timing says why.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: RealBatches,
        *,
        plain: Way,
        device: torch.device,
    ) -> None:
        self._model, self._batches = model, batches
        self._plain, self._device = plain, device
        self._fabric = _one_process(device)
        self._results: dict[tuple[Way, int], Timing] = {}
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

    def cost_of(self, way: Way, size: int, larger: int) -> float:
        """The likely time to measure a larger batch, given the timings of a smaller one."""
        reading = self._batches.read(size)
        steps = _STEPS_A_TRIAL * self.seconds([way], size)[way]
        return (steps + len(reading.batches) * reading.seconds) * larger / size

    def timing(self, way: Way, size: int) -> Timing | None:
        return self._results.get((way, size))

    def seconds(self, ways: Sequence[Way], size: int) -> dict[Way, float]:
        """What is known about these variants, in their order."""
        known = {way: self.timing(way, size) for way in ways}
        return {way: t.seconds for way, t in known.items() if t is not None and t.seconds}

    def time(self, ways: Sequence[Way], size: int) -> dict[Way, float]:
        """Seconds of a step in each variant that works.

        The one with every optimization comes right after the plainest: if time is short, those in
        between are skipped.
        """
        waiting = [*ways[:1], *reversed(ways[1:])]
        while waiting:
            trials = self._build(waiting, size)
            self._race(trials, size)
            trials.clear()
            self._free_memory()
        if any(way.compile for way in ways):
            torch.compiler.reset()
        return self.seconds(ways, size)

    def _race(self, trials: dict[Way, Trial], size: int) -> None:
        """Time the trials in turns, so that other load on the machine slows all of them equally."""
        blocks = {way: _block_steps(trial.guess) for way, trial in trials.items()}
        round_seconds = sum(trials[way].guess * steps for way, steps in blocks.items())
        times: dict[Way, list[float]] = {way: [] for way in trials}
        for number in range(self._count_rounds(round_seconds)):
            if number and self.left_seconds < 0:
                break
            for way, trial in trials.items():
                times[way].append(trial.run_block(blocks[way]))
        for way, values in times.items():
            self._note(way, size, seconds=median(values), compiling=trials[way].first_seconds)

    def measure_peak(self, way: Way, size: int) -> int | None:
        """Peak bytes of a step beyond weights and optimizer; None if it does not fit."""
        try:
            trial = self.make_trial(replace(way, cuda_graph=False, compile=False), size)
            trial.run()
            return measure_peak_bytes(trial.run, self._device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        finally:
            self._free_memory()

    def _build(self, waiting: list[Way], size: int) -> dict[Way, Trial]:
        """Trials of the first waiting variants, as many as a GPU holds side by side. When time is
        up, the others are not tried."""
        trials: dict[Way, Trial] = {}
        with Footprint(self._device) as footprint:
            while waiting and (not trials or footprint.fits_again()):
                if trials and self.left_seconds < 0:
                    waiting.clear()
                    break
                way = waiting.pop(0)
                try:
                    trial = self.make_trial(way, size)
                    trial.warm_up()
                    trials[way] = trial
                except Exception as error:  # a variant may fail where the plain one works
                    if way == self._plain and not is_out_of_memory(error):
                        raise
                    self._note(way, size, dropped=_why(error))
                if way not in trials:
                    self._free_memory()  # only now: the error itself kept memory alive
        return trials

    def make_trial(self, way: Way, size: int) -> Trial:
        batches = [
            move(batch, self._device, channels_last=way.channels_last)
            for batch in self._batches.read(size).batches
        ]
        return Trial(self._model, way, batches, self._fabric)

    def _free_memory(self) -> None:
        # CPU memory is freed without this, and garbage collection is slow.
        if self._device.type == "cuda":
            free_memory()

    def _count_rounds(self, round_seconds: float) -> int:
        affordable = self.left_seconds / 2 / max(round_seconds, 1e-9)
        return int(max(_FEWEST_ROUNDS, min(_ROUNDS, affordable)))

    def _note(
        self,
        way: Way,
        size: int,
        *,
        seconds: float | None = None,
        compiling: float = 0.0,
        dropped: str = "",
    ) -> None:
        self._results.pop((way, size), None)
        self._results[way, size] = Timing(
            way=str(way),
            batch_size=size,
            seconds=seconds,
            compile_seconds=compiling if way.compile and seconds else None,
            dropped=dropped,
        )


def _block_steps(guess: float) -> int:
    return max(1, min(_MAX_BLOCK_STEPS, round(_BLOCK_SECONDS / max(guess, 1e-9))))


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
