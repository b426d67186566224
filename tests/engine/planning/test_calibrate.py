"""Calibration keeps the fastest variant, drops what fails, and leaves nothing changed."""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clew.base.cores import CoreWatch, Times
from clew.base.errors import InputError
from clew.engine import HardwarePlan, LoadSettings, PlanRequest, plan_hardware, planner
from clew.engine.bench import RealBatches
from clew.engine.config import TrainConfig
from clew.engine.feed import random_state
from clew.engine.processes import start_fabric
from tests.engine.children import torchrun
from tests.engine.planning.making import (
    LONG_RUN,
    Network,
    Opener,
    Pictures,
    SomeBatches,
    classifier,
    machine,
)

pytestmark = pytest.mark.slow


def calibrated(
    network: nn.Module | None = None, batches: Any = None, epochs: int = LONG_RUN, **asked: Any
) -> HardwarePlan:
    """The plan of a run so long that everything but compiling is measured."""
    return plan_hardware(
        PlanRequest(**{"compile": False} | asked),
        model=classifier(network),
        open_batches=Opener() if batches is None else batches,
        epochs=epochs,
        machine=machine(),
    )


def ways(made: HardwarePlan) -> set[str]:
    return {timing.way for timing in made.timings}


def test_open_choices_are_measured_and_explained() -> None:
    made = calibrated()
    assert ways(made) == {"fp32", "bf16"}
    assert made.batch_size in {timing.batch_size for timing in made.timings} <= {16, 32}
    assert " per step vs. " in made.reasons["precision"]
    assert f"measured on {made.batch_size} samples" in made.reasons["precision"]
    assert " samples/s; " in made.reasons["batch_size"]
    assert made.reasons["channels_last"] == "the network has no 2-D convolutions"
    assert "to read and " in made.reasons["num_workers"]
    assert made.calibration_seconds > 0


def test_memory_layouts_are_tried_only_with_convolutions() -> None:
    pictures = Opener(shape=(3, 8, 8))
    made = calibrated(Pictures(), pictures, batch_size=16)
    assert ways(made) == {"fp32", "fp32, channels_last", "bf16", "bf16, channels_last"}
    assert " per step vs. " in made.reasons["channels_last"]
    assert ways(
        calibrated(Pictures(), pictures, batch_size=16, channels_last=False, amp=False)
    ) == {"fp32"}


def test_precision_is_kept_if_preparing_another_takes_a_large_part_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "_ON_CPU", replace(planner._ON_CPU, preparing=1e9))
    made = calibrated(Pictures(), Opener(shape=(3, 8, 8)), batch_size=16)
    assert ways(made) == {"fp32", "fp32, channels_last"}
    assert "preparing convolutions for another precision takes" in made.reasons["precision"]


def test_requested_choices_are_not_overridden_by_measurement() -> None:
    made = calibrated(batch_size=24, amp=True, grad_accum=3, num_workers=0)
    assert (made.batch_size, made.precision, made.grad_accum) == (24, "bf16", 3)
    assert (made.num_workers, made.persistent_workers) == (0, False)
    assert made.reasons["batch_size"] == "requested with `batch_size=24`"
    assert made.reasons["precision"] == "requested with `amp=True`"
    assert {(timing.way, timing.batch_size) for timing in made.timings} == {("bf16", 24)}


def test_model_and_random_state_are_restored() -> None:
    model = classifier()
    model.network.norm.running_mean.fill_(0.5)
    model.eval()
    torch.manual_seed(11)
    random.seed(12)
    np.random.seed(13)
    before = copy.deepcopy((model.state_dict(), random_state(torch.device("cpu"))))
    matmul = torch.get_float32_matmul_precision()
    plan_hardware(
        PlanRequest(compile=False, gradient_checkpointing=True),
        model=model,
        open_batches=Opener(),
        epochs=LONG_RUN,
        machine=machine(),
    )
    after = (model.state_dict(), random_state(torch.device("cpu")))
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=0, equal_nan=True)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.get_float32_matmul_precision() == matmul


def test_short_run_is_timed_once_and_kept_plain() -> None:
    made = calibrated(epochs=1, compile=None)
    assert len(made.timings) == 1
    assert (made.precision, made.batch_size) == ("fp32", 32)
    assert made.reasons["precision"].startswith("not measured: the run takes only about ")
    assert made.reasons["batch_size"] == made.reasons["precision"]
    assert made.reasons["compile"].startswith("the run takes only about ")
    assert made.reasons["compile"].endswith(", too short to make up for about 60 s of compiling")


def test_variant_that_runs_out_of_memory_is_dropped() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
    made = calibrated(Network(fails_mixed=full), batch_size=16)
    assert made.precision == "fp32"
    assert made.reasons["precision"] == "a step in bf16 was not used: out of memory"
    assert any(timing.dropped == "out of memory" for timing in made.timings)


def test_variant_that_fails_otherwise_is_dropped() -> None:
    broken = RuntimeError('"histogram" not implemented\nfor BFloat16\nmore lines')
    made = calibrated(Network(fails_mixed=broken), batch_size=16)
    assert made.precision == "fp32"
    assert made.reasons["precision"].endswith('"histogram" not implemented for BFloat16')


def test_batch_size_stops_growing_when_it_no_longer_fits() -> None:
    made = calibrated(Network(max_batch=16), amp=False)
    assert made.batch_size == 16
    if any(timing.batch_size == 32 for timing in made.timings):
        assert made.reasons["batch_size"].endswith("; 32 failed (out of memory)")


def test_requested_batch_that_does_not_fit_is_reported_in_reason() -> None:
    made = calibrated(Network(max_batch=8), batch_size=16)
    assert (made.precision, made.batch_size) == ("fp32", 16)
    assert made.reasons["precision"] == "16 samples do not fit in the memory of cpu"


def test_error_of_the_model_itself_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="x"):
        calibrated(batches=lambda _: [{"label": torch.zeros(4)}])


def test_data_without_batches_is_reported() -> None:
    with pytest.raises(InputError, match="the training data contains no batches"):
        calibrated(batches=Opener(samples=0))


def test_ready_made_batches_keep_their_size_and_position() -> None:
    batches = SomeBatches(batch_size=20, place=60)
    made = calibrated(batches=batches)
    assert (made.batch_size, batches.place) == (20, 60)
    assert made.reasons["batch_size"] == "the batch size of the given loader is fixed"
    with pytest.raises(InputError, match="batch_size is 64: the training batches"):
        calibrated(batches=batches, batch_size=64)


def test_without_calibration_nothing_is_run() -> None:
    opener = Opener()
    made = calibrated(batches=opener, calibrate=False)
    assert made.timings == () and not opener.asked


def test_compiling_is_tried_when_the_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    made = calibrated(batch_size=16, amp=False, compile=None)
    assert ways(made) == {"fp32", "fp32, compiled"}
    assert "s per step compiled vs. " in made.reasons["compile"]


def test_compiling_that_fails_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("no such backend")

    monkeypatch.setattr(torch, "compile", fail)
    made = calibrated(batch_size=16, amp=False, compile=None)
    assert made.compile is False
    assert made.reasons["compile"] == "torch.compile was not used: RuntimeError: no such backend"


def test_checkpointing_prints_both_peaks() -> None:
    made = calibrated(batch_size=32, gradient_checkpointing=True, epochs=1)
    assert made.reasons["gradient_checkpointing"].startswith(
        "requested with `gradient_checkpointing=True`: peak memory of a step is "
    )
    assert " kB with it, " in made.reasons["gradient_checkpointing"]
    assert " kB without, measured on 32 samples" in made.reasons["gradient_checkpointing"]


class Ragged:
    """Batches whose width is never the same."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for width in range(5, 15):
            yield {"x": torch.zeros(4, width), "label": torch.zeros(4)}


def test_shapes_that_never_repeat_are_detected() -> None:
    def pad(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "x": nn.functional.pad(batch["x"], (0, 16 - batch["x"].shape[1]))}

    settings = LoadSettings(batch_size=32)
    assert RealBatches(Ragged(), settings).shapes_differ(4, None)
    assert not RealBatches(Ragged(), settings).shapes_differ(4, pad)
    assert not RealBatches(SomeBatches(), settings).shapes_differ(20, None)


def plan_together(folder: Path) -> None:
    """In each of two processes."""
    torch.set_num_threads(1)
    fabric, opener = start_fabric("cpu"), Opener()
    made = plan_hardware(
        PlanRequest(compile=False),
        model=classifier(),
        open_batches=opener,
        samples=400,
        epochs=LONG_RUN,
        machine=machine(),
        processes=2,
        device=fabric.device,
    )
    assert {settings.batch_size for settings in opener.asked} <= {8, 16}, opener.asked
    (folder / str(fabric.global_rank)).write_text(json.dumps(made.to_dict()))


def test_processes_agree_on_one_plan(tmp_path: Path) -> None:
    assert torchrun(plan_together, tmp_path) == 0
    first, second = (tmp_path / "0").read_text(), (tmp_path / "1").read_text()
    assert first == second
    assert '"processes": 2' in first


def test_config_gives_the_epochs() -> None:
    made = plan_hardware(
        PlanRequest(compile=False),
        model=classifier(),
        open_batches=Opener(),
        config=TrainConfig(epochs=1),
        machine=machine(),
    )
    assert len(made.timings) == 1


def test_few_samples_leave_one_batch_size() -> None:
    made = calibrated(batches=Opener(samples=100))
    assert made.batch_size == 16
    assert made.reasons["batch_size"] == "there are too few samples for a larger batch"


class HalfBusy(CoreWatch):
    """Of two cores, other processes use one and a half."""

    def __init__(self) -> None:
        super().__init__(lambda: Times(clock=0.0, machine=0.0, own=0.0))

    def wait(self) -> None: ...

    def look(self) -> float:
        return 1.5


class SlowTogether(Network):
    """Several threads wait for each other; a clock of its own says how long."""

    now = 0.0

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        SlowTogether.now += 0.1 if torch.get_num_threads() == 1 else 2.0
        return super().forward(batch)


def test_threads_are_chosen_by_measurement_while_others_hold_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("time.perf_counter", lambda: SlowTogether.now)
    monkeypatch.setattr("clew.engine.planner.CoreWatch", HalfBusy)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        busy = calibrated(SlowTogether(), batch_size=16, amp=False)
        asked = calibrated(SlowTogether(), batch_size=16, amp=False, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert busy.threads == 1
    assert busy.reasons["threads"] == (
        "other processes use 1.5 of 2 cores: 1 thread is used, 20.0 times as fast as 2 now"
    )
    assert busy.step_seconds == pytest.approx(0.1)  # measured again
    assert (asked.threads, asked.reasons["threads"]) == (2, "requested with `threads=2`")
