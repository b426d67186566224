"""Finds the fastest variant of a step and the batch size: larger ones as long as they make training
faster and fit in memory. Explains what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clew.base.texts import bytes_text, counted, rate_text, step_text
from clew.engine.planning.bench import Bench
from clew.engine.planning.plan import Choice, Way

SMALLEST_BATCH = 16
_STEPS_AN_EPOCH = 8
_SIZE_MUST_GAIN = 0.10
# A faster variant must beat every plainer one by this much: less is noise, and plain is safe.
_WAY_MUST_GAIN = 0.05
_MIXED = ("bf16", "fp16")
_MEASURED = ("precision", "channels_last", "cuda_graph")


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
class Room:
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
    way: Way
    why_no_larger: str = ""


def find_way_and_size(
    bench: Bench, ways: Sequence[Way], sizes: Sequence[int], room: Room
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


def _fastest(bench: Bench, ways: Sequence[Way], size: int) -> Found | None:
    """The fastest variant at this batch size; when time is up, the fastest of those already
    timed."""
    known = bench.seconds(ways, size)
    is_new = len(known) < len(ways)
    seconds = bench.time(ways, size) if is_new and bench.left_seconds > 0 else known
    return Found(size=size, way=fastest_way(seconds)) if seconds else None


def _grow(bench: Bench, way: Way, sizes: Sequence[int], room: Room) -> Found:
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


def _why_not_try(bench: Bench, way: Way, size: int, larger: int, room: Room) -> str:
    needed = room.needed(larger)
    if needed > room.limit_bytes:
        limit = bytes_text(room.limit_bytes)
        return f"{larger:,} would take about {bytes_text(needed)} of memory, more than {limit}"
    if bench.cost_of(way, size, larger) > bench.left_seconds:
        return (
            f"{larger:,} was not tried: benchmarking may take at most {bench.budget_seconds:.0f} s"
        )
    return ""


def _gain(bench: Bench, way: Way, size: int, larger: int) -> float:
    before = bench.seconds([way], size)[way] / size
    seconds = bench.time([way], larger)
    return before / (seconds[way] / larger) - 1 if seconds else -1.0


def _why_not_take(bench: Bench, way: Way, larger: int, gain: float) -> str:
    timing = bench.timing(way, larger)
    if timing is not None and timing.dropped:
        return f"{larger:,} failed ({timing.dropped})"
    word = f"is only {gain:.0%} faster" if gain >= 0.005 else "is not faster"
    return f"{larger:,} {word}"


def fastest_way(seconds: Mapping[Way, float]) -> Way:
    """The fastest variant, unless a plainer one is nearly as fast; `seconds` has the plainest
    first. A 16-bit variant must beat the best full-precision one."""
    full = {way: time for way, time in seconds.items() if way.precision not in _MIXED}
    mixed = {way: time for way, time in seconds.items() if way.precision in _MIXED}
    if not full or not mixed:
        return _pick(seconds)
    best = _pick(mixed)
    return best if _beats(mixed[best], min(full.values())) else _pick(full)


def _pick(seconds: Mapping[Way, float]) -> Way:
    best = next(iter(seconds))
    for way in seconds:
        if _beats(seconds[way], seconds[best]):
            best = way
    return best


def _beats(seconds: float, plainer: float) -> bool:
    return seconds < plainer * (1 - _WAY_MUST_GAIN)


def _rival(way: Way, name: str, seconds: Mapping[Way, float]) -> Way | None:
    """The measured variant that differs in one choice only, the fastest if there are several."""
    values = {getattr(other, name) for other in seconds} - {getattr(way, name)}
    others = [replace(way, **{name: value}) for value in values]
    return min((o for o in others if o in seconds), key=seconds.__getitem__, default=None)


def compare_found(found: Found, ways: Sequence[Way], bench: Bench) -> dict[str, Choice]:
    """The open choices of the winning variant, each with a reason that compares it with its
    rival."""
    return {
        name: (getattr(found.way, name), _compare(found, name, ways, bench))
        for name in open_names(ways)
    }


def open_names(ways: Sequence[Way]) -> list[str]:
    """The choices in which the variants differ."""
    return [name for name in _MEASURED if len({getattr(way, name) for way in ways}) > 1]


def _compare(found: Found, name: str, ways: Sequence[Way], bench: Bench) -> str:
    seconds = bench.seconds(ways, found.size)
    other = _rival(found.way, name, seconds)
    if other is None:
        return _why_not_measured(found, name, ways, bench)
    mine, others = seconds[found.way], seconds[other]
    figures = f"{step_text(mine)} per step vs. {step_text(others)} {_in_words(name, other)}"
    measured = f"measured on {counted(found.size, 'sample')}"
    return f"{figures}, {measured}" + ("; the gain is too small" if others < mine else "")


def _why_not_measured(found: Found, name: str, ways: Sequence[Way], bench: Bench) -> str:
    [value] = {getattr(way, name) for way in ways} - {getattr(found.way, name)}
    other = replace(found.way, **{name: value})
    timing = bench.timing(other, found.size)
    words = _in_words(name, other)
    if timing is not None and timing.dropped:
        return f"a step {words} was not used: {timing.dropped}"
    return (
        f"a step {words} was not tried: benchmarking may take at most {bench.budget_seconds:.0f} s"
    )


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
