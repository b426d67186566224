"""Makes the hardware plan of a run: what was requested, what is possible, and what is fastest, by
measuring the real model and batches for a few seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from clew.base.cores import CoreWatch
from clew.base.cpu import Threads
from clew.base.errors import InputError
from clew.base.progress import Event, ignore_event
from clew.base.texts import bytes_text, counted, duration_text, rate_text, step_text
from clew.engine.bench import Bench, RealBatches, restored_state
from clew.engine.choices import DEFAULT_BATCH, OpenChoices, choose_plainly
from clew.engine.config import Batches, LoadSettings, OpenBatches, PlanRequest, TrainConfig
from clew.engine.plan import Choice, HardwarePlan, Machine, StepVariant, Timing, look_at_machine
from clew.engine.processes import count_processes, share_first, start_fabric

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
SMALLEST_BATCH = 16
_STEPS_AN_EPOCH = 8
_SIZE_MUST_GAIN = 0.10
# A faster variant must beat every plainer one by this much: less is noise, and plain is safe.
_WAY_MUST_GAIN = 0.05
_MIXED = ("bf16", "fp16")
_MEASURED = ("precision", "channels_last", "cuda_graph")


def plan_hardware(
    request: PlanRequest | None = None,
    *,
    model: nn.Module | None = None,
    open_batches: OpenBatches | Batches | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    config: TrainConfig | None = None,
    processes: int = 1,
    device: torch.device | None = None,
    machine: Machine | None = None,
) -> HardwarePlan:
    """Choose how a run uses the hardware.

    With `model` and `open_batches`, everything that the request leaves open is measured. Without
    them, the plan is the plain one and says what would be measured.

    Args:
        request: Choices to fix.
        model: The model to measure, with a `training_step`.
        open_batches: Opens training batches of a given size, or a ready-made loader, whose batch
            size is kept.
        samples: Samples per epoch. [default: taken from the batches]
        epochs: Overrides `config.epochs`.
        config: Hyperparameters of the run.
        processes: Number of processes that train together; all get the first one's plan.
        device: The device of this process.
        machine: The machine to plan for. [default: this one]

    Returns:
        The plan, with a reason for every choice.

    Raises:
        InputError: The machine cannot do what is requested.
    """
    request = request or PlanRequest()
    plan, left = choose_plainly(request, machine or look_at_machine(), processes)
    if model is None or open_batches is None or not request.calibrate:
        return plan
    plan = _calibrate(
        plan,
        left,
        model,
        open_batches,
        epochs=(config or TrainConfig()).epochs if epochs is None else epochs,
        device=device or torch.device(plan.device),
        samples=samples,
    )
    # Each process measured for itself, but all must use the same plan.
    return plan if processes == 1 else share_first(plan)


def connect(request: PlanRequest) -> str:
    """Connects the processes that torchrun started; returns the device that this one trains on.
    Raises InputError for a request that the machine cannot fulfill."""
    plan, _ = choose_plainly(request, look_at_machine(), count_processes())
    if plan.processes == 1:
        return plan.device
    return str(start_fabric(plan.device).device)


@dataclass(frozen=True, kw_only=True)
class _Budget:
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


_ON_GPU = _Budget(
    short_run_seconds=3,
    budget_seconds=10,
    budget_share=float("inf"),
    compile_seconds=40,
    compiles_a_run=3,
)
# Compiling gains little: two cores took 24 to 120 s to compile networks that then ran 0.5 to 1.4
# times as fast.
_ON_CPU = _Budget(
    short_run_seconds=15,
    budget_seconds=30,
    budget_share=0.1,
    compile_seconds=60,
    compiles_a_run=10,
)


def _calibrate(
    plan: HardwarePlan,
    left: OpenChoices,
    model: nn.Module,
    batches: OpenBatches | Batches,
    *,
    epochs: int,
    device: torch.device,
    samples: int | None,
) -> HardwarePlan:
    """The plan with every open choice measured on this process's `device`. Model, random state and
    the position of a ready-made loader are restored afterwards. `samples` is the number per epoch;
    None takes it from the batches."""
    cached, watch = plan.max_cache_batches, CoreWatch()
    settings = LoadSettings(batch_size=plan.process_batch, max_cache_batches=cached, shuffle=True)
    with restored_state(device), Threads(plan.threads, ignore_event):
        real = RealBatches(batches, settings, processes=plan.processes, samples=samples)
        sizes, known_size = _open_sizes(left.batch_size, real, plan.processes)
        ways, known_ways = _open_ways(left, model, real, sizes[0])
        bench = Bench(model, real, plain=ways[0], device=device)
        run = _Measuring(
            bench=bench,
            ways=ways,
            sizes=sizes,
            all_samples=real.samples * epochs,
            device=plan.device,
            budget=_ON_GPU if device.type == "cuda" else _ON_CPU,
        )
        measured = run.choose(left, model, watch)
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
) -> tuple[list[StepVariant], dict[str, Choice]]:
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
    ways: Sequence[StepVariant]
    sizes: Sequence[int]
    all_samples: int
    device: str
    budget: _Budget

    def choose(self, left: OpenChoices, model: nn.Module, watch: CoreWatch) -> dict[str, Choice]:
        seconds = self._time_plain()
        threads: dict[str, Choice] = {}
        if left.threads and self.budget.short_run_seconds <= seconds < float("inf"):
            threads = self._choose_threads(watch)
            seconds = self._time_plain() if threads else seconds
        return threads | self._choose_way(left, model, seconds)

    def _choose_way(self, left: OpenChoices, model: nn.Module, seconds: float) -> dict[str, Choice]:
        """`seconds` is what the run takes in the plain variant."""
        size = self.sizes[0]
        if seconds < self.budget.short_run_seconds:
            short = f"not measured: the run takes only {_about(seconds)}"
            return self._keep_plain(short) | self._skip_compiling(left, seconds)
        share = self.budget.budget_share * seconds
        self.bench.allow(min(self.budget.budget_seconds, share))
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

    def _find_room(self, limit: int, model: nn.Module) -> "BatchMemory":
        """The memory available for a batch. What a batch takes is measured at the smallest size,
        and only if there are several sizes to choose from."""
        size, peak = self.sizes[0], 0
        if len(self.sizes) > 1:
            peak = self.bench.measure_peak(self.ways[0], size) or limit
        gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        return BatchMemory(limit_bytes=limit, fixed_bytes=gradients, peak_bytes=peak, size=size)

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
        run, cost = _about(run_seconds), _about(self.budget.compile_seconds)
        why = f"the run takes only {run}, too short to make up for {cost} of compiling"
        return {"compile": (False, why)}

    def _try_compiling(self, left: OpenChoices, found: "Found") -> dict[str, Choice]:
        plain = self.bench.seconds([found.way], found.size)[found.way]
        seconds = self._run_seconds(plain, found.size)
        if seconds < self.budget.compiles_a_run * self.budget.compile_seconds:
            return self._skip_compiling(left, seconds)
        if not left.compile:
            return {}
        compiled = replace(found.way, compile=True)
        self.bench.time([compiled], found.size)
        timing = self.bench.timing(compiled, found.size)
        return {"compile": compile_reason(plain, timing, seconds)}


def _show_checkpointing(way: StepVariant, size: int, bench: Bench) -> dict[str, Choice]:
    """Measure how much memory gradient checkpointing saves."""
    if not way.gradient_checkpointing:
        return {}
    with_it, without = (
        bench.measure_peak(replace(way, gradient_checkpointing=on), size) for on in (True, False)
    )
    return {"gradient_checkpointing": (True, checkpointing_reason(with_it, without, size))}


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


def batch_sizes(samples: int, processes: int) -> list[int]:
    """Powers of two that leave an epoch enough steps and divide evenly among the processes."""
    most = max(SMALLEST_BATCH, samples // _STEPS_AN_EPOCH)
    sizes, size = [], SMALLEST_BATCH
    while size <= most:
        sizes.append(-(-size // processes) * processes)
        size *= 2
    few = max(1, samples // processes) * processes
    return sorted({min(size, few) for size in sizes})


@dataclass(frozen=True, kw_only=True)
class BatchMemory:
    """The memory that a batch may take, and what one of `size` samples took."""

    limit_bytes: int
    fixed_bytes: int
    peak_bytes: int
    size: int

    def needed(self, size: int) -> int:
        grows = max(0, self.peak_bytes - self.fixed_bytes)
        return self.fixed_bytes + round(grows * size / self.size)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A batch size, its fastest variant of a step, and why no larger one was chosen."""

    size: int
    way: StepVariant
    why_no_larger: str = ""


def find_way_and_size(
    bench: Bench, ways: Sequence[StepVariant], sizes: Sequence[int], room: BatchMemory
) -> Found | None:
    """Find the fastest variant and batch size; None if nothing fits in memory. The fastest variant
    may depend on the batch size, so all are timed again after the batch has grown; if
    another one wins, its batch may grow further."""
    found = _fastest(bench, ways, sizes[0])
    while found is not None:
        grown = _grow(bench, found.way, [size for size in sizes if size >= found.size], room)
        if grown.size == found.size:
            return grown
        better = _fastest(bench, ways, grown.size)
        if better is None or better.way == grown.way:
            return grown
        found = better
    return None


def _fastest(bench: Bench, ways: Sequence[StepVariant], size: int) -> Found | None:
    """The fastest variant at this batch size; when time is up, the fastest of those already
    timed."""
    known = bench.seconds(ways, size)
    is_new = len(known) < len(ways)
    seconds = bench.time(ways, size) if is_new and bench.left_seconds > 0 else known
    return Found(size=size, way=fastest_way(seconds)) if seconds else None


def _grow(bench: Bench, way: StepVariant, sizes: Sequence[int], room: BatchMemory) -> Found:
    size = sizes[0]
    for larger in sizes[1:]:
        why = _why_not_try(bench, way, size, larger, room)
        gain = 0.0 if why else _gain(bench, way, size, larger)
        if not why and gain <= _SIZE_MUST_GAIN:
            why = _why_not_take(bench, way, larger, gain)
        if why:
            return Found(size=size, way=way, why_no_larger=why)
        size = larger
    return Found(
        size=size,
        way=way,
        why_no_larger=f"a larger batch would leave fewer than {_STEPS_AN_EPOCH} steps per epoch",
    )


def _why_not_try(bench: Bench, way: StepVariant, size: int, larger: int, room: BatchMemory) -> str:
    needed = room.needed(larger)
    if needed > room.limit_bytes:
        limit = bytes_text(room.limit_bytes)
        return f"{larger:,} would take about {bytes_text(needed)} of memory, more than {limit}"
    if bench.cost_of(way, size, larger) > bench.left_seconds:
        return (
            f"{larger:,} was not tried: benchmarking may take at most {bench.budget_seconds:.0f} s"
        )
    return ""


def _gain(bench: Bench, way: StepVariant, size: int, larger: int) -> float:
    before = bench.seconds([way], size)[way] / size
    seconds = bench.time([way], larger)
    return before / (seconds[way] / larger) - 1 if seconds else -1.0


def _why_not_take(bench: Bench, way: StepVariant, larger: int, gain: float) -> str:
    timing = bench.timing(way, larger)
    if timing is not None and timing.dropped:
        return f"{larger:,} failed ({timing.dropped})"
    word = f"is only {gain:.0%} faster" if gain >= 0.005 else "is not faster"
    return f"{larger:,} {word}"


def fastest_way(seconds: Mapping[StepVariant, float]) -> StepVariant:
    """The fastest variant, unless a plainer one is nearly as fast; `seconds` has the plainest
    first. A 16-bit variant must beat the best full-precision one."""
    full = {way: time for way, time in seconds.items() if way.precision not in _MIXED}
    mixed = {way: time for way, time in seconds.items() if way.precision in _MIXED}
    if not full or not mixed:
        return _pick(seconds)
    best = _pick(mixed)
    return best if _beats(mixed[best], min(full.values())) else _pick(full)


def _pick(seconds: Mapping[StepVariant, float]) -> StepVariant:
    best = next(iter(seconds))
    for way in seconds:
        if _beats(seconds[way], seconds[best]):
            best = way
    return best


def _beats(seconds: float, plainer: float) -> bool:
    return seconds < plainer * (1 - _WAY_MUST_GAIN)


def _rival(way: StepVariant, name: str, seconds: Mapping[StepVariant, float]) -> StepVariant | None:
    """The measured variant that differs in one choice only, the fastest if there are several."""
    values = {getattr(other, name) for other in seconds} - {getattr(way, name)}
    others = [replace(way, **{name: value}) for value in values]
    return min((o for o in others if o in seconds), key=seconds.__getitem__, default=None)


def compare_found(found: Found, ways: Sequence[StepVariant], bench: Bench) -> dict[str, Choice]:
    """The open choices of the winning variant, each with a reason that compares it with its
    rival."""
    return {
        name: (getattr(found.way, name), _compare(found, name, ways, bench))
        for name in open_names(ways)
    }


def open_names(ways: Sequence[StepVariant]) -> list[str]:
    """The choices in which the variants differ."""
    return [name for name in _MEASURED if len({getattr(way, name) for way in ways}) > 1]


def _compare(found: Found, name: str, ways: Sequence[StepVariant], bench: Bench) -> str:
    seconds = bench.seconds(ways, found.size)
    other = _rival(found.way, name, seconds)
    if other is None:
        return _why_not_measured(found, name, ways, bench)
    mine, others = seconds[found.way], seconds[other]
    figures = f"{step_text(mine)} per step vs. {step_text(others)} {_in_words(name, other)}"
    measured = f"measured on {counted(found.size, 'sample')}"
    return f"{figures}, {measured}" + ("; the gain is too small" if others < mine else "")


def _why_not_measured(found: Found, name: str, ways: Sequence[StepVariant], bench: Bench) -> str:
    [value] = {getattr(way, name) for way in ways} - {getattr(found.way, name)}
    other = replace(found.way, **{name: value})
    timing = bench.timing(other, found.size)
    words = _in_words(name, other)
    if timing is not None and timing.dropped:
        return f"a step {words} was not used: {timing.dropped}"
    return (
        f"a step {words} was not tried: benchmarking may take at most {bench.budget_seconds:.0f} s"
    )


def _in_words(name: str, way: StepVariant) -> str:
    words: dict[str, dict[Any, str]] = {
        "channels_last": {True: "with channels_last", False: "without"},
        "cuda_graph": {True: "as one CUDA graph", False: "without a graph"},
    }
    return words[name][getattr(way, name)] if name in words else f"in {way.precision}"


def batch_reason(found: Found, bench: Bench) -> str:
    timing = bench.timing(found.way, found.size)
    rate = rate_text(timing.samples_per_second) if timing else ""
    return f"{rate}; {found.why_no_larger}"
