"""Which measurements lead to which choice."""

from typing import Any

import pytest

from clew.engine import PlanRequest
from clew.engine.choices import choose_loading, choose_plainly, memory_limit, open_variants
from clew.engine.plan import StepVariant, Timing
from clew.engine.planner import (
    Search,
    batch_sizes,
    checkpointing_reason,
    compile_reason,
    fastest_variant,
)
from tests.engine.planning.making import NEW_GPU, OLD_GPU, machine

FP32, BF16 = StepVariant(), StepVariant(precision="bf16")
TF32, GRAPH = StepVariant(precision="tf32"), StepVariant(precision="bf16", cuda_graph=True)
ROOMY = {"limit_bytes": 10**12, "fixed_bytes": 0, "peak_bytes": 1}


class Table:
    """A bench with fixed timings; a variant and size without one is out of memory."""

    budget_seconds = left_seconds = 10.0

    def __init__(self, seconds: dict[StepVariant, dict[int, float]]) -> None:
        self._seconds = seconds
        self._known: dict[tuple[StepVariant, int], Timing] = {}

    def timing(self, way: StepVariant, size: int) -> Timing | None:
        return self._known.get((way, size))

    def seconds(self, ways: Any, size: int) -> dict[StepVariant, float]:
        known = {way: self.timing(way, size) for way in ways}
        return {way: t.seconds for way, t in known.items() if t and t.seconds}

    def cost_of(self, way: StepVariant, size: int, larger: int) -> float:
        return self._seconds[way][size] * larger / size

    def time(self, ways: Any, size: int) -> dict[StepVariant, float]:
        for way in ways:
            seconds = self._seconds[way].get(size)
            dropped = "" if seconds else "out of memory"
            self._known[way, size] = Timing(
                way=str(way), batch_size=size, seconds=seconds, dropped=dropped
            )
        return self.seconds(ways, size)


def search(
    table: dict[StepVariant, dict[int, float]], sizes: list[int], memory: dict[str, int]
) -> Search | None:
    bench: Any = Table(table)
    found = Search(bench=bench, variants=list(table), sizes=sizes, **memory)
    return found if found.run() else None


def find(
    table: dict[StepVariant, dict[int, float]], memory: dict[str, int] = ROOMY
) -> tuple[int, StepVariant, str]:
    sizes = sorted({size for times in table.values() for size in times} | {16, 32, 64})
    found = search(table, sizes, memory)
    assert found is not None
    return found.size, found.variant, found.explain()["batch_size"][1]


def test_batch_grows_while_it_pays_off() -> None:
    size, _, why = find({FP32: {16: 0.010, 32: 0.011, 64: 0.021}})
    assert (size, why) == (32, "2,910 samples/s; 64 is only 5% faster")


def test_batch_stops_growing_when_an_epoch_would_have_too_few_steps() -> None:
    size, _, why = find({FP32: {16: 0.010, 32: 0.011, 64: 0.012}})
    assert size == 64
    assert why == "5,330 samples/s; a larger batch would leave fewer than 8 steps per epoch"


def test_batch_stops_growing_at_the_memory_limit() -> None:
    memory = {"limit_bytes": 5000, "fixed_bytes": 1000, "peak_bytes": 2600}
    size, _, why = find({FP32: {16: 0.010, 32: 0.011, 64: 0.012}}, memory)
    assert (size, why) == (
        32,
        "2,910 samples/s; 64 would take about 7.4 kB of memory, more than 5 kB",
    )
    assert find({FP32: {16: 0.010, 64: 0.012}})[2] == "1,600 samples/s; 32 failed (out of memory)"


def test_batch_stops_growing_when_time_is_up() -> None:
    size, _, why = find({FP32: {16: 6.0, 32: 6.1}})
    assert (size, why) == (
        16,
        "2.67 samples/s; 32 was not tried: benchmarking may take at most 10 s",
    )


def test_fastest_variant_may_change_with_the_batch_size() -> None:
    few_fp32 = {16: 0.010, 32: 0.012, 64: 0.024}
    size, way, _ = find({FP32: few_fp32, BF16: {16: 0.012, 32: 0.011, 64: 0.013}})
    assert (size, way) == (64, BF16)


def test_no_plan_is_found_when_nothing_fits() -> None:
    assert search({FP32: {}}, [16], ROOMY) is None


@pytest.mark.parametrize(
    ("samples", "processes", "sizes"),
    [
        (11_000, 1, [16, 32, 64, 128, 256, 512, 1024]),
        (400, 1, [16, 32]),
        (100, 1, [16]),
        (9, 1, [9]),
        (1000, 3, [18, 33, 66]),
        (2, 1, [2]),
    ],
)
def test_batch_sizes_leave_an_epoch_enough_steps(
    samples: int, processes: int, sizes: list[int]
) -> None:
    assert batch_sizes(samples, processes) == sizes


def test_memory_is_shared_with_other_processes() -> None:
    cpu, gpu = machine(), machine(gpus=(NEW_GPU,))
    assert memory_limit(choose_plainly(PlanRequest(), cpu, 2), cpu) == 2 * 10**9
    assert memory_limit(choose_plainly(PlanRequest(), gpu, 1), gpu) == 48 * 10**9


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({FP32: 1.0, BF16: 0.97}, FP32),
        ({FP32: 1.0, BF16: 0.94}, BF16),
        ({FP32: 1.0, BF16: 1.3}, FP32),
        ({BF16: 1.0}, BF16),
        (
            {TF32: 1.0, StepVariant(precision="tf32", cuda_graph=True): 0.3, BF16: 0.8, GRAPH: 0.2},
            GRAPH,
        ),
        (
            {
                TF32: 0.30,
                StepVariant(precision="tf32", cuda_graph=True): 0.29,
                BF16: 0.6,
                GRAPH: 0.28,
            },
            TF32,
        ),
    ],
)
def test_plainer_variant_is_kept_unless_clearly_beaten(
    seconds: dict[StepVariant, float], best: StepVariant
) -> None:
    assert fastest_variant(seconds) == best


def test_reason_gives_the_timings() -> None:
    on, request = machine(gpus=(NEW_GPU,)), PlanRequest(channels_last=False)
    plan = choose_plainly(request, on, 1)
    variants = open_variants(request, plan, on)
    assert [str(variant) for variant in variants] == [
        *("tf32", "tf32, one CUDA graph"),
        *("bf16", "bf16, one CUDA graph"),
    ]
    times = ({32: ms / 1e3} for ms in (5, 3.4, 4.2, 2.1))
    found = search(dict(zip(variants, times, strict=True)), [32], ROOMY)
    assert found is not None
    made = plan.change_all(found.explain())
    measured = "measured on 32 samples"
    assert made.reasons["precision"] == f"2.1 ms per step vs. 3.4 ms in tf32, {measured}"
    assert made.reasons["cuda_graph"] == f"2.1 ms per step vs. 4.2 ms without a graph, {measured}"
    assert (made.precision, made.cuda_graph, made.channels_last) == ("bf16", True, False)


def test_too_small_a_gain_is_reported() -> None:
    found = search({FP32: {16: 0.0034}, BF16: {16: 0.0033}}, [16], ROOMY)
    assert found is not None
    assert found.explain()["precision"] == (
        "fp32",
        "3.4 ms per step vs. 3.3 ms in bf16, measured on 16 samples; the gain is too small",
    )


def test_old_gpus_try_fp16_and_image_models_try_channels_last() -> None:
    on = machine(gpus=(OLD_GPU,))
    variants = open_variants(PlanRequest(), choose_plainly(PlanRequest(), on, 2), on)
    assert {one.precision for one in variants} == {"fp32", "fp16"}
    assert {one.channels_last for one in variants} == {False, True}
    assert {one.cuda_graph for one in variants} == {False}


@pytest.mark.parametrize(
    ("compiled", "cost", "is_worth", "why"),
    [
        (
            0.001,
            40,
            True,
            "1.0 ms per step compiled vs. 2.0 ms uncompiled; compiling takes 40 s and saves about",
        ),
        (
            0.0019,
            90,
            False,
            "1.9 ms per step compiled vs. 2.0 ms uncompiled: compiling would save 30 s",
        ),
        (
            0.003,
            40,
            False,
            "3.0 ms per step compiled vs. 2.0 ms uncompiled: compiling would save nothing",
        ),
    ],
)
def test_compile_is_used_only_if_it_pays_off(
    compiled: float, cost: float, is_worth: bool, why: str
) -> None:
    timing = Timing(way="x", batch_size=32, seconds=compiled, compile_seconds=cost)
    taken, reason = compile_reason(0.002, timing, run_seconds=600)
    assert taken is is_worth
    assert reason.startswith(why)


@pytest.mark.parametrize(
    ("read", "step", "gpu_workers", "cpu_workers"),
    [(0.001, 0.010, 2, 1), (0.010, 0.010, 3, 1), (0.1, 0.010, 8, 2)],
)
def test_threads_are_just_enough_to_keep_up(
    read: float, step: float, gpu_workers: int, cpu_workers: int
) -> None:
    for on, workers in (
        (machine(gpus=(NEW_GPU,), cores=16), gpu_workers),
        (machine(), cpu_workers),
    ):
        request = PlanRequest()
        plan = choose_plainly(request, on, 1)
        chosen = choose_loading(request, plan, on, read_seconds=read, step_seconds=step)
        assert chosen["num_workers"][0] == workers


def test_checkpointing_that_saves_nothing_is_reported() -> None:
    assert checkpointing_reason(2000, 2000, 8).endswith("; it saves no memory on this network")
    assert "more than fits in memory without" in checkpointing_reason(2000, None, 8)
    assert checkpointing_reason(None, None, 8).endswith("even so, 8 samples do not fit in memory")
    assert checkpointing_reason(None, None, 1).endswith("even so, 1 sample does not fit in memory")
