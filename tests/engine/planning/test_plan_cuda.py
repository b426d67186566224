"""The plan on a real GPU."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from clew.engine import HardwarePlan, PlanRequest, plan_hardware
from clew.engine.plan import look_at_machine
from tests.engine.planning.making import LONG_RUN, Network, Opener, classifier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def calibrated(network: nn.Module | None = None, **asked: Any) -> HardwarePlan:
    return plan_hardware(
        PlanRequest(**{"compile": False} | asked),
        model=classifier(network),
        open_batches=Opener(samples=4000),
        epochs=LONG_RUN,
    )


def test_gpu_is_detected_and_used() -> None:
    [gpu, *_] = look_at_machine().gpus
    assert 0 < gpu.free_bytes <= gpu.memory_bytes
    made = plan_hardware()
    assert (made.device, made.pin_memory, made.non_blocking) == ("cuda", True, True)
    assert gpu.name in made.reasons["device"]


def test_precisions_and_launches_are_tried() -> None:
    made = calibrated(batch_size=64)
    mixed = "bf16" if look_at_machine().gpus[0].has_bf16 else "fp16"
    tried = {timing.way for timing in made.timings}
    assert {f"{mixed}", f"{mixed}, one CUDA graph"} < tried and len(tried) == 4
    assert not any(timing.dropped for timing in made.timings)
    assert "measured on 64 samples" in made.reasons["cuda_graph"]


def test_batch_size_grows() -> None:
    made = calibrated()
    assert made.batch_size in (16, 32, 64, 128, 256, 512)
    assert " samples/s; " in made.reasons["batch_size"]


def test_calibration_leaves_no_memory_behind() -> None:
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    free, state = torch.cuda.memory_allocated(), torch.cuda.get_rng_state()
    plan_hardware(PlanRequest(compile=False), model=model, open_batches=Opener(), epochs=LONG_RUN)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.memory_allocated() == free


class Greedy(Network):
    """Asks for more memory than there is when a batch has more than 64 samples."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        if len(batch["x"]) > 64:
            torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device="cuda")
        return super().forward(batch)


def test_batch_that_does_not_fit_is_dropped() -> None:
    made = calibrated(Greedy(), amp=False, cuda_graph=False)
    assert made.batch_size <= 64
    nothing = calibrated(Greedy(), batch_size=128)
    assert nothing.reasons["precision"] == "128 samples do not fit in the memory of cuda"
    assert all(timing.dropped == "out of memory" for timing in nothing.timings)


def test_checkpointing_prints_both_peaks() -> None:
    made = calibrated(batch_size=64, gradient_checkpointing=True)
    assert made.cuda_graph is False
    assert " with it, " in made.reasons["gradient_checkpointing"]
