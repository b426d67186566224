"""Revises a plan by measuring the real model and batches for a few seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from clew.base.cores import CoreWatch
from clew.base.cpu import Threads
from clew.base.errors import InputError
from clew.base.progress import Event, ignore_event
from clew.base.texts import bytes_text, counted, duration_text, step_text
from clew.engine.planning.bench import Bench, left_as_it_was
from clew.engine.planning.choices import DEFAULT_BATCH, OpenChoices
from clew.engine.planning.plan import Choice, HardwarePlan, Timing, Way
from clew.engine.planning.real_batches import RealBatches
from clew.engine.planning.search import (
    Found,
    Room,
    batch_reason,
    batch_sizes,
    compare_found,
    find_way_and_size,
    open_names,
)
from clew.engine.protocols import Batches, LoadSettings, OpenBatches

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, kw_only=True)
class _Patience:
    """How much measuring may cost on one kind of device.

    A run of fewer than `short_run_seconds` is over before a better plan would have been found.
    torch.compile is tried if the run takes at least `compiles_a_run` times `compile_seconds`, the
    assumed cost of compiling until it is measured.
    """

    short_run_seconds: float
    budget_seconds: float
    budget_share: float
    compile_seconds: float
    compiles_a_run: int


_ON_GPU = _Patience(
    short_run_seconds=3,
    budget_seconds=10,
    budget_share=float("inf"),
    compile_seconds=40,
    compiles_a_run=3,
)
# Compiling gains little: two cores took 24 to 120 s to compile networks that then ran 0.5 to 1.4
# times as fast.
_ON_CPU = _Patience(
    short_run_seconds=15,
    budget_seconds=30,
    budget_share=0.1,
    compile_seconds=60,
    compiles_a_run=10,
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The planned run, on this process's `device`. `samples` is the number per epoch; None takes it
    from the batches."""

    model: nn.Module
    batches: OpenBatches | Batches
    epochs: int
    device: torch.device
    samples: int | None = None


def calibrate(plan: HardwarePlan, left: OpenChoices, training: Training) -> HardwarePlan:
    """The plan with every open choice measured. Model, random state and the position of a
    ready-made loader are restored afterwards."""
    cached, watch = plan.max_cache_batches, CoreWatch()
    settings = LoadSettings(batch_size=plan.process_batch, max_cache_batches=cached, shuffle=True)
    with left_as_it_was(training.device), Threads(plan.threads, ignore_event):
        real = RealBatches(
            training.batches, settings, processes=plan.processes, samples=training.samples
        )
        sizes, known_size = _open_sizes(left.batch_size, real, plan.processes)
        ways, known_ways = _open_ways(left, training.model, real, sizes[0])
        bench = Bench(training.model, real, plain=ways[0], device=training.device)
        run = _Measuring(
            bench=bench,
            ways=ways,
            sizes=sizes,
            all_samples=real.samples * training.epochs,
            device=plan.device,
            patience=_ON_GPU if training.device.type == "cuda" else _ON_CPU,
        )
        measured = run.choose(left, training.model, watch)
        plan = plan.change_all({**known_size, **known_ways, **measured})
        plan = plan.change_all(_show_checkpointing(plan.way, plan.batch_size, bench))
        timing = bench.timing(plan.way, plan.batch_size)
        if timing is not None and timing.seconds:
            read = real.read(plan.batch_size).seconds
            plan = plan.change_all(
                left.loading.choose(read_seconds=read, step_seconds=timing.seconds)
            )
    return replace(plan, timings=bench.timings, calibration_seconds=bench.spent_seconds)


def _open_sizes(
    asked: int | None, real: RealBatches, processes: int
) -> tuple[list[int], dict[str, Choice]]:
    """The batch sizes to choose from, smallest first; if there is only one, also why."""
    if real.own_size is None and asked is not None:
        return [asked], {}
    if real.own_size is None:
        sizes = batch_sizes(real.samples, processes)
        few = (sizes[0], "there are too few samples for a larger batch")
        return sizes, {"batch_size": few} if len(sizes) == 1 else {}
    if asked not in (None, real.own_size):
        raise InputError(
            f"the training batches have a fixed size of {counted(real.own_size, 'sample')}. Omit "
            "the setting, or pass a function that opens the batches.",
            setting="batch_size",
            value=asked,
        )
    return [real.own_size], {
        "batch_size": (real.own_size, "the batch size of the given loader is fixed")
    }


def _open_ways(
    left: OpenChoices, model: nn.Module, real: RealBatches, size: int
) -> tuple[list[Way], dict[str, Choice]]:
    """The variants to choose from, plainest first, and what rules some out."""
    ways, known = list(left.ways), dict[str, Choice]()
    if left.layout and not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        ways = [way for way in ways if not way.channels_last]
        known["channels_last"] = (False, "the network has no 2-D convolutions")
    pad = getattr(model, "pad_batch", None)
    if "cuda_graph" in open_names(ways) and real.shapes_differ(size, pad):
        ways = [way for way in ways if not way.cuda_graph]
        why = "no two batches have the same shape, so a recorded step could not be reused"
        known["cuda_graph"] = (False, why)
    return ways, known


@dataclass(frozen=True, kw_only=True)
class _Measuring:
    """The fastest of `ways` and `sizes`. `all_samples` are those of all epochs together."""

    bench: Bench
    ways: Sequence[Way]
    sizes: Sequence[int]
    all_samples: int
    device: str
    patience: _Patience

    def choose(self, left: OpenChoices, model: nn.Module, watch: CoreWatch) -> dict[str, Choice]:
        seconds = self._time_plain()
        threads: dict[str, Choice] = {}
        if left.threads and self.patience.short_run_seconds <= seconds < float("inf"):
            threads = self._choose_threads(watch)
            seconds = self._time_plain() if threads else seconds
        return threads | self._choose_way(left, model, seconds)

    def _choose_way(self, left: OpenChoices, model: nn.Module, seconds: float) -> dict[str, Choice]:
        """`seconds` is what the run takes in the plain variant."""
        size = self.sizes[0]
        if seconds < self.patience.short_run_seconds:
            return self._keep_plain(_too_short(seconds)) | self._skip_compiling(left, seconds)
        budget = self.patience.budget_share * seconds
        self.bench.allow(min(self.patience.budget_seconds, budget))
        room = self._find_room(left.memory_bytes, model)
        found = find_way_and_size(self.bench, self.ways, self.sizes, room)
        if found is None:
            why = f"{counted(size, 'sample')} {_do(size)} not fit in the memory of {self.device}"
            return self._keep_plain(why)
        chosen = compare_found(found, self.ways, self.bench)
        if len(self.sizes) > 1:
            chosen["batch_size"] = (found.size, batch_reason(found, self.bench))
        return chosen | self._try_compiling(left, found)

    def _time_plain(self) -> float:
        """Seconds of the whole run in the plain variant; infinite if a batch does not fit."""
        plain, size = self.ways[0], self.sizes[0]
        timed = self.bench.time([plain], size)
        return self._run_seconds(timed[plain], size) if timed else float("inf")

    def _choose_threads(self, watch: CoreWatch) -> dict[str, Choice]:
        """Measured as in a capture; nothing if all cores are free."""
        told: list[Event] = []
        watch.wait()
        step = self.bench.make_trial(self.ways[0], self.sizes[0]).run
        Threads(None, told.append, watch).settle(step)
        return {"threads": (torch.get_num_threads(), str(told[0]))} if told else {}

    def _run_seconds(self, step_seconds: float, size: int) -> float:
        return step_seconds / size * self.all_samples

    def _find_room(self, limit: int, model: nn.Module) -> Room:
        """The memory available for a batch. What a batch takes is measured at the smallest size,
        and only if there are several sizes to choose from."""
        size, peak = self.sizes[0], 0
        if len(self.sizes) > 1:
            peak = self.bench.measure_peak(self.ways[0], size) or limit
        gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        return Room(limit_bytes=limit, fixed_bytes=gradients, peak_bytes=peak, size=size)

    def _keep_plain(self, why: str) -> dict[str, Choice]:
        """Keep the plain variant for every open choice, with the same reason for all."""
        kept: dict[str, Choice] = {
            name: (getattr(self.ways[0], name), why) for name in open_names(self.ways)
        }
        if len(self.sizes) > 1:
            usual = [size for size in self.sizes if size <= DEFAULT_BATCH]
            kept["batch_size"] = (max(usual, default=self.sizes[0]), why)
        return kept

    def _skip_compiling(self, left: OpenChoices, run_seconds: float) -> dict[str, Choice]:
        if not left.compile:
            return {}
        why = _compile_too_dear(run_seconds, self.patience.compile_seconds)
        return {"compile": (False, why)}

    def _try_compiling(self, left: OpenChoices, found: Found) -> dict[str, Choice]:
        plain = self.bench.seconds([found.way], found.size)[found.way]
        seconds = self._run_seconds(plain, found.size)
        if seconds < self.patience.compiles_a_run * self.patience.compile_seconds:
            return self._skip_compiling(left, seconds)
        if not left.compile:
            return {}
        compiled = replace(found.way, compile=True)
        self.bench.time([compiled], found.size)
        timing = self.bench.timing(compiled, found.size)
        return {"compile": compile_reason(plain, timing, seconds)}


def _show_checkpointing(way: Way, size: int, bench: Bench) -> dict[str, Choice]:
    """Measure how much memory gradient checkpointing saves."""
    if not way.gradient_checkpointing:
        return {}
    with_it, without = (
        bench.measure_peak(replace(way, gradient_checkpointing=on), size) for on in (True, False)
    )
    return {"gradient_checkpointing": (True, checkpointing_reason(with_it, without, size))}


def _too_short(run_seconds: float) -> str:
    return f"not measured: the run takes only {_about(run_seconds)}"


def _compile_too_dear(run_seconds: float, compile_seconds: float) -> str:
    cost = _about(compile_seconds)
    return f"the run takes only {_about(run_seconds)}, too short to make up for {cost} of compiling"


def _about(seconds: float) -> str:
    return f"about {duration_text(max(1.0, seconds))}"


def compile_reason(plain: float, compiled: Timing | None, run_seconds: float) -> tuple[bool, str]:
    """Whether compiling earns back its cost, and the figures."""
    if compiled is None or compiled.seconds is None:
        why = compiled.dropped if compiled else "it was not tried"
        return False, f"torch.compile was not used: {why}"
    cost = compiled.compile_seconds or 0.0
    saved = run_seconds * (1 - compiled.seconds / plain)
    figures = f"{step_text(compiled.seconds)} per step compiled vs. {step_text(plain)} uncompiled"
    if saved > cost:
        gain = f"saves about {duration_text(saved)} of {duration_text(run_seconds)}"
        return True, f"{figures}; compiling takes {duration_text(cost)} and {gain}"
    no_gain = "would save nothing" if saved <= 0 else f"would save {duration_text(saved)}"
    return False, f"{figures}: compiling {no_gain} and would take {duration_text(cost)}"


def checkpointing_reason(with_it: int | None, without: int | None, size: int) -> str:
    asked = "requested with `gradient_checkpointing=True`"
    if with_it is None:
        return f"{asked}; even so, {counted(size, 'sample')} {_do(size)} not fit in memory"
    other = "more than fits in memory" if without is None else bytes_text(without)
    peak = f"peak memory of a step is {bytes_text(with_it)} with it, {other} without"
    none = "; it saves no memory on this network" if without and with_it >= without else ""
    return f"{asked}: {peak}, measured on {counted(size, 'sample')}{none}"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"
