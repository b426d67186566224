"""Revises a plan by what a few seconds of measuring on the real model and batches show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.planning.bench import Bench
from clew.engine.planning.choices import DEFAULT_BATCH
from clew.engine.planning.growth import Found, Room, batch_sizes, find_way_and_size, memory_limit
from clew.engine.planning.hardware import Machine
from clew.engine.planning.loading import choose_loading
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.real_batches import RealBatches
from clew.engine.planning.reasons import (
    batch_reason,
    checkpointing_reason,
    compile_reason,
    compile_too_dear,
    take_found,
    too_short,
)
from clew.engine.planning.trials import left_as_it_was
from clew.engine.planning.ways import Way, has_convolutions, list_ways, way_of
from clew.engine.protocols import Batches, OpenBatches
from clew.errors import InputError
from clew.wording import counted

# A run shorter than this is over before a better plan would have been found.
_GPU_SHORT_RUN_SECONDS, _CPU_SHORT_RUN_SECONDS = 3, 15
_GPU_BUDGET_SECONDS, _CPU_BUDGET_SECONDS = 10.0, 30.0
_BUDGET_SHARE = 0.1
# What compiling costs until it is known, and how many times that a run must take to try it. On a
# CPU it gains little: two cores took 24 to 120 s to compile networks that then ran 0.5 to 1.4 times
# as fast.
_GPU_COMPILE_SECONDS, _CPU_COMPILE_SECONDS = 40, 60
_GPU_COMPILES_A_RUN, _CPU_COMPILES_A_RUN = 3, 10


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is to be planned: the request, on which machine, and the training that it is for.

    `samples` None asks the batches; `device` is that of this process.
    """

    request: PlanRequest
    machine: Machine
    model: nn.Module
    batches: OpenBatches | Batches
    config: TrainConfig
    device: torch.device
    samples: int | None = None


def calibrate(plan: HardwarePlan, run: Run) -> HardwarePlan:
    """The plan with every open choice measured. Model, random numbers and a ready-made loader's
    place are afterwards what they were."""
    with left_as_it_was(run.device):
        real = RealBatches(run.batches, plan, samples=run.samples)
        plan, sizes = _open_sizes(plan, run, real)
        plan, ways = _open_ways(plan, run, real, sizes[0])
        bench = Bench(run.model, plan, real, plain=ways[0], device=run.device, config=run.config)
        plan = _measure(plan, run, real, bench, ways, sizes)
        plan = _show_checkpointing(plan, bench)
        plan = _choose_loading(plan, run, real, bench)
    return replace(plan, timings=bench.timings, calibration_seconds=bench.spent_seconds)


def _open_sizes(plan: HardwarePlan, run: Run, real: RealBatches) -> tuple[HardwarePlan, list[int]]:
    """The batch sizes to choose from, smallest first."""
    asked = run.request.batch_size
    if real.own_size is None and asked is not None:
        return plan, [asked]
    if real.own_size is None:
        sizes = batch_sizes(real.samples, plan.processes)
        if len(sizes) == 1:
            plan = plan.change("batch_size", sizes[0], "there are too few samples for a larger one")
        return plan, sizes
    if asked not in (None, real.own_size):
        raise InputError(
            f"the training batches come ready-made with {counted(real.own_size, 'sample')}. Omit "
            f"the setting, or give a function that opens the batches.",
            setting="batch_size",
            value=asked,
        )
    return plan.change("batch_size", real.own_size, "the batches come ready-made"), [real.own_size]


def _open_ways(
    plan: HardwarePlan, run: Run, real: RealBatches, size: int
) -> tuple[HardwarePlan, list[Way]]:
    """The ways to choose from, plainest first; what rules some out is said in the plan."""
    ways = list_ways(run.request, plan, run.machine, run.model)
    if run.request.channels_last is None and not has_convolutions(run.model):
        plan = plan.change("channels_last", False, "the network has no 2-D convolutions")
    graphs_open = len({way.cuda_graph for way in ways}) > 1
    if graphs_open and real.shapes_differ(size, getattr(run.model, "pad_batch", None)):
        ways = [way for way in ways if not way.cuda_graph]
        why = "no two batches have the same shape, so a recorded step could not be used again"
        plan = plan.change("cuda_graph", False, why)
    return plan, ways


def _measure(
    plan: HardwarePlan,
    run: Run,
    real: RealBatches,
    bench: Bench,
    ways: Sequence[Way],
    sizes: Sequence[int],
) -> HardwarePlan:
    plain = bench.time(ways[:1], sizes[0])
    seconds_a_sample = plain[ways[0]] / sizes[0] if plain else float("inf")
    run_seconds = seconds_a_sample * real.samples * run.config.epochs
    if run_seconds < _short_run_seconds(run.device):
        plan = _keep_plain(plan, ways, sizes, too_short(run_seconds))
        return _skip_compiling(plan, run, run_seconds)
    bench.allow(_budget(run.device, run_seconds))
    found = find_way_and_size(bench, ways, sizes, _room(plan, run, bench, ways[0], sizes))
    if found is None:
        why = f"{counted(sizes[0], 'sample')} do not fit into the memory of {plan.device}"
        return _keep_plain(plan, ways, sizes, why)
    plan = take_found(plan, found, ways, bench)
    if len(sizes) > 1:
        plan = plan.change("batch_size", found.size, batch_reason(found, bench))
    return _try_compiling(plan, run, real, bench, found)


def _short_run_seconds(device: torch.device) -> float:
    return _GPU_SHORT_RUN_SECONDS if device.type == "cuda" else _CPU_SHORT_RUN_SECONDS


def _budget(device: torch.device, run_seconds: float) -> float:
    if device.type == "cuda":
        return _GPU_BUDGET_SECONDS
    return min(_CPU_BUDGET_SECONDS, _BUDGET_SHARE * run_seconds)


def _room(plan: HardwarePlan, run: Run, bench: Bench, plain: Way, sizes: Sequence[int]) -> Room:
    """What a batch takes is measured on the smallest; where there is no choice, nothing is."""
    limit = memory_limit(plan, run.machine)
    peak = 0
    if len(sizes) > 1:
        on = plan.gradient_checkpointing
        peak = bench.measure_peak(plain, sizes[0], gradient_checkpointing=on) or limit
    gradients = sum(p.nbytes for p in run.model.parameters() if p.requires_grad)
    return Room(limit_bytes=limit, fixed_bytes=gradients, peak_bytes=peak, size=sizes[0])


def _keep_plain(
    plan: HardwarePlan, ways: Sequence[Way], sizes: Sequence[int], why: str
) -> HardwarePlan:
    """The plainest of what is open, all for the same reason."""
    for name in ("precision", "channels_last", "cuda_graph"):
        if len({getattr(way, name) for way in ways}) > 1:
            plan = plan.change(name, getattr(ways[0], name), why)
    if len(sizes) > 1:
        usual = [size for size in sizes if size <= DEFAULT_BATCH]
        plan = plan.change("batch_size", max(usual, default=sizes[0]), why)
    return plan


def _skip_compiling(plan: HardwarePlan, run: Run, run_seconds: float) -> HardwarePlan:
    if not _may_compile(run):
        return plan
    return plan.change("compile", False, compile_too_dear(run_seconds, _compile_cost(run)))


def _try_compiling(
    plan: HardwarePlan, run: Run, real: RealBatches, bench: Bench, found: Found
) -> HardwarePlan:
    plain = bench.seconds([found.way], found.size)[found.way]
    run_seconds = plain / found.size * real.samples * run.config.epochs
    if not _may_compile(run) or run_seconds < _compiles_a_run(run) * _compile_cost(run):
        return _skip_compiling(plan, run, run_seconds)
    compiled = replace(found.way, compile=True)
    bench.time([compiled], found.size)
    is_worth, why = compile_reason(plain, bench.timing(compiled, found.size), run_seconds)
    return plan.change("compile", is_worth, why)


def _may_compile(run: Run) -> bool:
    return run.request.compile is None and not run.machine.cannot_compile


def _compile_cost(run: Run) -> float:
    return _GPU_COMPILE_SECONDS if run.device.type == "cuda" else _CPU_COMPILE_SECONDS


def _compiles_a_run(run: Run) -> int:
    return _GPU_COMPILES_A_RUN if run.device.type == "cuda" else _CPU_COMPILES_A_RUN


def _show_checkpointing(plan: HardwarePlan, bench: Bench) -> HardwarePlan:
    """What gradient checkpointing really saves."""
    if not plan.gradient_checkpointing:
        return plan
    peaks = {
        on: bench.measure_peak(way_of(plan), plan.batch_size, gradient_checkpointing=on)
        for on in (True, False)
    }
    why = checkpointing_reason(peaks[True], peaks[False], plan.batch_size)
    return plan.change("gradient_checkpointing", True, why)


def _choose_loading(plan: HardwarePlan, run: Run, real: RealBatches, bench: Bench) -> HardwarePlan:
    timing = bench.timing(way_of(plan), plan.batch_size)
    if timing is None or not timing.seconds:
        return plan
    read = real.read(plan.batch_size).seconds
    return choose_loading(
        run.request, plan, run.machine, read_seconds=read, step_seconds=timing.seconds
    )
