"""The sentences of a plan that follow from what was measured."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clew.engine.planning.bench import Bench
from clew.engine.planning.growth import Found
from clew.engine.planning.plan import HardwarePlan, Timing
from clew.engine.planning.ways import Way, rival
from clew.wording import bytes_text, counted, duration_text, rate_text, step_text

_MEASURED = ("precision", "channels_last", "cuda_graph")


def take_found(plan: HardwarePlan, found: Found, ways: Sequence[Way], bench: Bench) -> HardwarePlan:
    """The plan with the way that won; what was left open is compared with what it beat."""
    for name in _MEASURED:
        value = getattr(found.way, name)
        is_open = len({getattr(way, name) for way in ways}) > 1
        why = _compare(found, name, ways, bench) if is_open else plan.reasons[name]
        plan = plan.change(name, value, why)
    return plan


def _compare(found: Found, name: str, ways: Sequence[Way], bench: Bench) -> str:
    seconds = bench.seconds(ways, found.size)
    other = rival(found.way, name, seconds)
    if other is None:
        return _why_unmeasured(found, name, ways, bench)
    mine, others = seconds[found.way], seconds[other]
    figures = f"{step_text(mine)} a step against {step_text(others)} {_in_words(name, other)}"
    measured = f"measured on {counted(found.size, 'sample')}"
    return f"{figures}, {measured}" + ("; too little to gain" if others < mine else "")


def _why_unmeasured(found: Found, name: str, ways: Sequence[Way], bench: Bench) -> str:
    [value] = {getattr(way, name) for way in ways} - {getattr(found.way, name)}
    other = replace(found.way, **{name: value})
    timing = bench.timing(other, found.size)
    words = _in_words(name, other)
    if timing is not None and timing.dropped:
        return f"a step {words} was dropped: {timing.dropped}"
    return f"a step {words} was not tried: calibration may take {bench.budget_seconds:.0f} s"


def _in_words(name: str, way: Way) -> str:
    words: dict[str, dict[Any, str]] = {
        "channels_last": {True: "with channels_last", False: "without"},
        "cuda_graph": {True: "as one CUDA graph", False: "without a graph"},
    }
    return words[name][getattr(way, name)] if name in words else f"in {way.precision}"


def batch_reason(found: Found, bench: Bench) -> str:
    timing = bench.timing(found.way, found.size)
    rate = rate_text(timing.samples_per_second) if timing else ""
    return f"{rate}; {found.why_no_larger}"


def too_short(run_seconds: float) -> str:
    return f"not measured: the run takes {_about(run_seconds)}"


def compile_too_dear(run_seconds: float, compile_seconds: float) -> str:
    cost = _about(compile_seconds)
    return f"the run takes {_about(run_seconds)}, too short to earn back {cost} of compiling"


def _about(seconds: float) -> str:
    return f"about {duration_text(max(1.0, seconds))}"


def compile_reason(plain: float, compiled: Timing | None, run_seconds: float) -> tuple[bool, str]:
    """Whether compiling earns back what it costs, and the figures."""
    if compiled is None or compiled.seconds is None:
        why = compiled.dropped if compiled else "it was not tried"
        return False, f"compiling was dropped: {why}"
    cost = compiled.compile_seconds or 0.0
    saved = run_seconds * (1 - compiled.seconds / plain)
    figures = f"{step_text(compiled.seconds)} a step against {step_text(plain)}"
    if saved > cost:
        gain = f"saves about {duration_text(saved)} of {duration_text(run_seconds)}"
        return True, f"{figures} without; compiling takes {duration_text(cost)} and {gain}"
    no_gain = "would save nothing" if saved <= 0 else f"would save {duration_text(saved)}"
    return False, f"compiled {figures} without, which {no_gain} and cost {duration_text(cost)}"


def checkpointing_reason(with_it: int | None, without: int | None, size: int) -> str:
    asked = "as asked for with `gradient_checkpointing=True`"
    if with_it is None:
        return f"{asked}; even so {counted(size, 'sample')} do not fit into memory"
    other = "too much to fit" if without is None else bytes_text(without)
    peak = f"a step's peak is {bytes_text(with_it)} with it, {other} without"
    none = "; it saves nothing on this network" if without and with_it >= without else ""
    return f"{asked}: {peak}, measured on {counted(size, 'sample')}{none}"
