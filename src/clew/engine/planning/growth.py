"""Finds the batch size: larger ones as long as they make training faster and fit into memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from clew.engine.planning.bench import Bench
from clew.engine.planning.hardware import Machine
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.ways import Way, fastest_way
from clew.wording import bytes_text

SMALLEST_BATCH = 16
_STEPS_AN_EPOCH = 8
_MUST_GAIN = 0.10
_GPU_SHARE, _RAM_SHARE = 0.6, 0.5


def batch_sizes(samples: int, processes: int) -> list[int]:
    """Powers of two that leave an epoch enough steps, each shared evenly by the processes."""
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


def memory_limit(plan: HardwarePlan, machine: Machine) -> int:
    if plan.device == "cpu":
        return round(_RAM_SHARE * machine.free_memory_bytes / plan.processes)
    gpu = machine.gpu(plan.device)
    return round(min(_GPU_SHARE * gpu.memory_bytes, gpu.free_bytes))


@dataclass(frozen=True, kw_only=True)
class Found:
    """A batch size, the fastest way to make a step of it, and why no larger one was taken."""

    size: int
    way: Way
    why_no_larger: str = ""


def find_way_and_size(
    bench: Bench, ways: Sequence[Way], sizes: Sequence[int], room: Room
) -> Found | None:
    """What is fastest for few samples may not be for many: after growing, the ways are timed
    again, and if another wins, it may grow further. None when nothing fits into memory."""
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
    """Of those that could be timed; when time is up, of those that were."""
    known = bench.seconds(ways, size)
    is_new = len(known) < len(ways)
    seconds = bench.time(ways, size) if is_new and bench.left_seconds > 0 else known
    return Found(size=size, way=fastest_way(seconds)) if seconds else None


def _grow(bench: Bench, way: Way, sizes: Sequence[int], room: Room) -> Found:
    size = sizes[0]
    for larger in sizes[1:]:
        why = _why_not_try(bench, way, size, larger, room)
        gain = 0.0 if why else _gain(bench, way, size, larger)
        if not why and gain <= _MUST_GAIN:
            why = _why_not_take(bench, way, larger, gain)
        if why:
            return Found(size=size, way=way, why_no_larger=why)
        size = larger
    return Found(
        size=size,
        way=way,
        why_no_larger=f"a larger one would leave fewer than {_STEPS_AN_EPOCH} steps an epoch",
    )


def _why_not_try(bench: Bench, way: Way, size: int, larger: int, room: Room) -> str:
    needed = room.needed(larger)
    if needed > room.limit_bytes:
        limit = bytes_text(room.limit_bytes)
        return f"{larger:,} would take about {bytes_text(needed)} of memory, more than {limit}"
    if bench.cost_of(way, size, larger) > bench.left_seconds:
        return f"{larger:,} was not tried: calibration may take {bench.budget_seconds:.0f} s"
    return ""


def _gain(bench: Bench, way: Way, size: int, larger: int) -> float:
    before = bench.seconds([way], size)[way] / size
    seconds = bench.time([way], larger)
    return before / (seconds[way] / larger) - 1 if seconds else -1.0


def _why_not_take(bench: Bench, way: Way, larger: int, gain: float) -> str:
    timing = bench.timing(way, larger)
    if timing is not None and timing.dropped:
        return f"{larger:,} was dropped ({timing.dropped})"
    word = f"gave only {gain:.0%} more" if gain >= 0.005 else "gave no more"
    return f"{larger:,} {word}"
