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
from clew.engine.choices import (
    DEFAULT_BATCH,
    choose_loading,
    choose_plainly,
    memory_limit,
    open_variants,
)
from clew.engine.config import Batches, LoadSettings, OpenBatches, PlanRequest, TrainConfig
from clew.engine.plan import Choice, HardwarePlan, Machine, StepVariant, Timing, look_at_machine
from clew.engine.processes import share_first, start_fabric
from clew.engine.torchrun import count_processes

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
SMALLEST_BATCH = 16
_STEPS_AN_EPOCH = 8
_SIZE_MUST_GAIN = 0.10
# A faster variant must beat every plainer one by this much: less is noise, and plain is safe.
_VARIANT_MUST_GAIN = 0.05
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
    request, machine = request or PlanRequest(), machine or look_at_machine()
    plan = choose_plainly(request, machine, processes)
    if model is None or open_batches is None or not request.calibrate:
        return plan
    device, watch = device or torch.device(plan.device), CoreWatch()
    cached = plan.max_cache_batches
    settings = LoadSettings(batch_size=plan.process_batch, max_cache_batches=cached, shuffle=True)
    with restored_state(device), Threads(plan.threads, ignore_event):
        batches = RealBatches(open_batches, settings, processes=processes, samples=samples)
        run = _Calibration(request, machine, plan, model, batches, device)
        plan = run.plan_run((config or TrainConfig()).epochs if epochs is None else epochs, watch)
    # Each process measured for itself, but all must use the same plan.
    return plan if processes == 1 else share_first(plan)


def connect(request: PlanRequest) -> str:
    """Connects the processes that torchrun started; returns the device that this one trains on.
    Raises InputError for a request that the machine cannot fulfill."""
    plan = choose_plainly(request, look_at_machine(), count_processes())
    if plan.processes == 1:
        return plan.device
    return str(start_fabric(plan.device).device)


@dataclass(frozen=True, kw_only=True)
class _Budget:
    """How much measuring may cost on one kind of device: `seconds`, and a `share` of the run, or
    at least `fewest_seconds`, in which the variants that matter most are timed.

    A run of fewer than `short_run` seconds is over before a better plan would have been found.
    torch.compile is tried if the run takes at least `compiles_a_run` times `compiling`, the
    assumed seconds of compiling until they are measured. `preparing`: the seconds that a network of
    convolutions takes to prepare its kernels for another precision.
    """

    short_run: float
    seconds: float
    share: float
    fewest_seconds: float
    compiling: float
    compiles_a_run: int
    preparing: float = 0


_ON_GPU = _Budget(
    short_run=3,
    seconds=10,
    share=0.1,
    fewest_seconds=5,
    compiling=40,
    compiles_a_run=3,
    preparing=10,
)
# Preparing the kernels of another precision may take a third of the run.
_PREPARES_A_RUN = 3
# Compiling gains little: two cores took 24 to 120 s to compile networks that then ran 0.5 to 1.4
# times as fast.
_ON_CPU = _Budget(
    short_run=15, seconds=30, share=0.1, fewest_seconds=0, compiling=60, compiles_a_run=10
)


class _Calibration:
    """Measures every choice that the request leaves open, on this process's `device`. `plan` has
    what was chosen so far."""

    def __init__(
        self,
        request: PlanRequest,
        machine: Machine,
        plan: HardwarePlan,
        model: nn.Module,
        batches: RealBatches,
        device: torch.device,
    ) -> None:
        self._request, self._machine, self.plan = request, machine, plan
        self._model, self._batches = model, batches
        self._budget = _ON_GPU if device.type == "cuda" else _ON_CPU
        self._sizes = self._open_sizes()
        self._variants = self._open_variants()
        self._bench = Bench(model, batches, plain=self._variants[0], device=device)

    def plan_run(self, epochs: int, watch: CoreWatch) -> HardwarePlan:
        """The plan of a run of so many epochs."""
        self._all_samples = self._batches.samples * epochs
        self._measure(watch)
        bench, variant, size = self._bench, self.plan.variant, self.plan.batch_size
        if variant.gradient_checkpointing:
            with_it, without = (
                bench.measure_peak(replace(variant, gradient_checkpointing=on), size)
                for on in (True, False)
            )
            why = checkpointing_reason(with_it, without, size)
            self._choose("gradient_checkpointing", True, why)
        timing = bench.timing(variant, size)
        if timing is not None and timing.seconds:
            loading = choose_loading(
                self._request,
                self.plan,
                self._machine,
                read_seconds=self._batches.read(size).seconds,
                step_seconds=timing.seconds,
            )
            self.plan = self.plan.change_all(loading)
        return replace(self.plan, timings=bench.timings, calibration_seconds=bench.spent_seconds)

    def _choose(self, name: str, value: Any, why: str) -> None:
        self.plan = self.plan.change(name, value, why)

    def _open_sizes(self) -> list[int]:
        """The batch sizes to choose from, smallest first."""
        asked, own = self._request.batch_size, self._batches.own_size
        if own is None and asked is not None:
            return [asked]
        if own is None:
            sizes = batch_sizes(self._batches.samples, self.plan.processes)
            if len(sizes) == 1:
                why = "there are too few samples for a larger batch"
                self._choose("batch_size", sizes[0], why)
            return sizes
        if asked not in (None, own):
            raise InputError(
                f"the training batches have a fixed size of {counted(own, 'sample')}. Omit the "
                "setting, or pass a function that opens the batches.",
                setting="batch_size",
                value=asked,
            )
        self._choose("batch_size", own, "the batch size of the given loader is fixed")
        return [own]

    def _open_variants(self) -> list[StepVariant]:
        """The variants to choose from, plainest first, without those that the model rules out."""
        variants = open_variants(self._request, self.plan, self._machine)
        why = "" if self._has_images else "the network has no 2-D convolutions"
        if self.plan.device != "cpu" and (layout := getattr(self._model, "layout", None)):
            why = f"the network arranges its images itself ({layout}): the setting changes nothing"
        if self._request.channels_last is None and why:
            variants = [one for one in variants if not one.channels_last]
            self._choose("channels_last", False, why)
        pad = getattr(self._model, "pad_batch", None)
        if "cuda_graph" in open_names(variants) and self._batches.shapes_differ(
            self._sizes[0], pad
        ):
            variants = [one for one in variants if not one.cuda_graph]
            why = "no two batches have the same shape, so a recorded step could not be reused"
            self._choose("cuda_graph", False, why)
        return variants

    @property
    def _has_images(self) -> bool:
        return any(isinstance(module, _CONVOLUTIONS) for module in self._model.modules())

    def _measure(self, watch: CoreWatch) -> None:
        seconds, short = self._time_plain(), self._budget.short_run
        is_open = self._request.threads is None and self.plan.device == "cpu"
        if is_open and short <= seconds < float("inf") and self._measure_threads(watch):
            seconds = self._time_plain()
        if seconds < short:
            self._keep_plain(f"not measured: the run takes only {_about(seconds)}")
            self._measure_compiling(seconds)
            return
        self._keep_precision(seconds)
        share = max(self._budget.fewest_seconds, self._budget.share * seconds)
        self._bench.allow(min(self._budget.seconds, share))
        search = self._open_search()
        if not search.run():
            size = self._sizes[0]
            where = f"not fit in the memory of {self.plan.device}"
            self._keep_plain(f"{counted(size, 'sample')} {_do(size)} {where}")
            return
        self.plan = self.plan.change_all(search.explain())
        plain = self._bench.seconds([search.variant], search.size)[search.variant]
        self._measure_compiling(self._run_seconds(plain, search.size), search, plain)

    def _keep_precision(self, seconds: float) -> None:
        """Rule out other precisions if preparing convolutions for one would take a large part of a
        run, which takes so many seconds in the plain variant."""
        plain, size = self._variants[0], self._sizes[0]
        same = [one for one in self._variants if one.precision == plain.precision]
        cost = self._budget.preparing
        if not cost or len(same) == len(self._variants) or not self._has_images:
            return
        faster = self._bench.time(same[1:], size) if same[1:] else {}
        seconds = min([seconds, *(self._run_seconds(one, size) for one in faster.values())])
        if seconds < _PREPARES_A_RUN * cost:
            self._variants = same
            why = f"preparing convolutions for another precision takes {_about(cost)}"
            self._choose("precision", plain.precision, f"the run takes {_about(seconds)}; {why}")

    def _time_plain(self) -> float:
        """Seconds of the whole run in the plain variant; infinite if a batch does not fit."""
        timed = self._bench.time(self._variants[:1], self._sizes[0])
        seconds = timed.get(self._variants[0])
        return float("inf") if seconds is None else self._run_seconds(seconds, self._sizes[0])

    def _run_seconds(self, step_seconds: float, size: int) -> float:
        return step_seconds / size * self._all_samples

    def _measure_threads(self, watch: CoreWatch) -> bool:
        """Measured as in a capture; False if all cores are free."""
        told: list[Event] = []
        watch.wait()
        step = self._bench.make_trial(self._variants[0], self._sizes[0]).run
        Threads(None, told.append, watch).settle(step)
        if told:
            self._choose("threads", torch.get_num_threads(), str(told[0]))
        return bool(told)

    def _open_search(self) -> "Search":
        """What a batch takes is measured at the smallest size, and only if there are several sizes
        to choose from."""
        limit, peak = memory_limit(self.plan, self._machine), 0
        if len(self._sizes) > 1:
            peak = self._bench.measure_peak(self._variants[0], self._sizes[0]) or limit
        return Search(
            bench=self._bench,
            variants=self._variants,
            sizes=self._sizes,
            limit_bytes=limit,
            fixed_bytes=sum(p.nbytes for p in self._model.parameters() if p.requires_grad),
            peak_bytes=peak,
        )

    def _keep_plain(self, why: str) -> None:
        """Keep the plain variant for every open choice, with the same reason for all."""
        for name in open_names(self._variants):
            self._choose(name, getattr(self._variants[0], name), why)
        if len(self._sizes) > 1:
            usual = [size for size in self._sizes if size <= DEFAULT_BATCH]
            self._choose("batch_size", max(usual, default=self._sizes[0]), why)

    def _measure_compiling(
        self, run_seconds: float, search: "Search | None" = None, plain: float = 0.0
    ) -> None:
        """Whether to compile what the search found, whose step takes `plain` seconds; without a
        search, the run is too short."""
        if self._request.compile is not None or self._machine.cannot_compile:
            return
        cost = self._budget.compiling
        if search is None or run_seconds < self._budget.compiles_a_run * cost:
            too_short = f"too short to make up for {_about(cost)} of compiling"
            self._choose("compile", False, f"the run takes only {_about(run_seconds)}, {too_short}")
            return
        compiled = replace(search.variant, compile=True)
        self._bench.time([compiled], search.size)
        timing = self._bench.timing(compiled, search.size)
        self._choose("compile", *compile_reason(plain, timing, run_seconds))


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


@dataclass(kw_only=True)
class Search:
    """Finds the fastest variant of a step and batch size, and says why. `variants` has the plainest
    first, `sizes` the smallest. A batch may take `limit_bytes`; one of the smallest size took
    `peak_bytes`, of which `fixed_bytes` do not grow with it."""

    bench: Bench
    variants: Sequence[StepVariant]
    sizes: Sequence[int]
    limit_bytes: int
    fixed_bytes: int = 0
    peak_bytes: int = 0
    variant: StepVariant = StepVariant()
    size: int = 0
    why_no_larger: str = ""

    def run(self) -> bool:
        """Find `variant` and `size`; False if nothing fits in memory. The fastest variant may
        depend on the batch size, so all are timed again after the batch has grown; if another one
        wins, its batch may grow further."""
        self.size = self.sizes[0]
        fastest = self._find_fastest()
        while fastest is not None:
            self.variant, before = fastest, self.size
            self._grow()
            fastest = self._find_fastest() if self.size > before else None
            if fastest in (None, self.variant):
                return True
        return False

    def _find_fastest(self) -> StepVariant | None:
        """At this batch size; when time is up, the fastest of those already timed."""
        seconds = self.bench.seconds(self.variants, self.size)
        if len(seconds) < len(self.variants) and self.bench.left_seconds > 0:
            seconds = self.bench.time(self.variants, self.size)
        return fastest_variant(seconds) if seconds else None

    def _grow(self) -> None:
        for larger in [size for size in self.sizes if size > self.size]:
            self.why_no_larger = self._why_not(larger)
            if self.why_no_larger:
                return
            self.size = larger
        few = f"fewer than {_STEPS_AN_EPOCH} steps per epoch"
        self.why_no_larger = f"a larger batch would leave {few}"

    def _why_not(self, larger: int) -> str:
        bench, variant, size = self.bench, self.variant, self.size
        grows = max(0, self.peak_bytes - self.fixed_bytes)
        needed = self.fixed_bytes + round(grows * larger / self.sizes[0])
        if needed > self.limit_bytes:
            limit = bytes_text(self.limit_bytes)
            return f"{larger:,} would take about {bytes_text(needed)} of memory, more than {limit}"
        if bench.cost_of(variant, size, larger) > bench.left_seconds:
            return f"{larger:,} was not tried: {self._time_is_up}"
        before = bench.seconds([variant], size)[variant] / size
        seconds = bench.time([variant], larger)
        gain = before / (seconds[variant] / larger) - 1 if seconds else -1.0
        if gain > _SIZE_MUST_GAIN:
            return ""
        timing = bench.timing(variant, larger)
        if timing is not None and timing.dropped:
            return f"{larger:,} failed ({timing.dropped})"
        return f"{larger:,} is {f'only {gain:.0%} faster' if gain >= 0.005 else 'not faster'}"

    @property
    def _time_is_up(self) -> str:
        return f"benchmarking may take at most {self.bench.budget_seconds:.0f} s"

    def explain(self) -> dict[str, Choice]:
        """The choices that were open, each with a reason that compares it with its rival."""
        chosen: dict[str, Choice] = {
            name: (getattr(self.variant, name), self._compare(name))
            for name in open_names(self.variants)
        }
        if len(self.sizes) > 1:
            timing = self.bench.timing(self.variant, self.size)
            rate = rate_text(timing.samples_per_second) if timing else ""
            chosen["batch_size"] = (self.size, f"{rate}; {self.why_no_larger}")
        return chosen

    def _compare(self, name: str) -> str:
        """With the variant that differs in this choice only, the fastest if there are several."""
        seconds = self.bench.seconds(self.variants, self.size)
        values = {getattr(one, name) for one in self.variants} - {getattr(self.variant, name)}
        others = [replace(self.variant, **{name: value}) for value in values]
        other = min((o for o in others if o in seconds), key=seconds.__getitem__, default=None)
        if other is None:
            timing = self.bench.timing(others[0], self.size)
            dropped = timing.dropped if timing is not None else ""
            fate = f"used: {dropped}" if dropped else f"tried: {self._time_is_up}"
            return f"a step {_in_words(name, others[0])} was not {fate}"
        mine, theirs = seconds[self.variant], seconds[other]
        figures = f"{step_text(mine)} per step vs. {step_text(theirs)} {_in_words(name, other)}"
        measured = f"measured on {counted(self.size, 'sample')}"
        return f"{figures}, {measured}" + ("; the gain is too small" if theirs < mine else "")


def fastest_variant(seconds: Mapping[StepVariant, float]) -> StepVariant:
    """The fastest variant, unless a plainer one is nearly as fast; `seconds` has the plainest
    first. A 16-bit variant must beat the best full-precision one."""
    full = {one: time for one, time in seconds.items() if one.precision not in _MIXED}
    mixed = {one: time for one, time in seconds.items() if one.precision in _MIXED}
    if not full or not mixed:
        return _pick(seconds)
    best = _pick(mixed)
    return best if _beats(mixed[best], min(full.values())) else _pick(full)


def _pick(seconds: Mapping[StepVariant, float]) -> StepVariant:
    best = next(iter(seconds))
    for variant in seconds:
        if _beats(seconds[variant], seconds[best]):
            best = variant
    return best


def _beats(seconds: float, plainer: float) -> bool:
    return seconds < plainer * (1 - _VARIANT_MUST_GAIN)


def open_names(variants: Sequence[StepVariant]) -> list[str]:
    """The choices in which the variants differ."""
    return [name for name in _MEASURED if len({getattr(one, name) for one in variants}) > 1]


def _in_words(name: str, variant: StepVariant) -> str:
    words: dict[str, dict[Any, str]] = {
        "channels_last": {True: "with channels_last", False: "without"},
        "cuda_graph": {True: "as one CUDA graph", False: "without a graph"},
    }
    return words[name][getattr(variant, name)] if name in words else f"in {variant.precision}"
