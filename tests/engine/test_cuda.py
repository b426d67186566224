"""The loop on a real GPU: metrics are read back late, copies overlap with the steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import TrainingError, TrainingStoppedError
from clew.engine import Classifier, HardwarePlan, LoadSettings, PlanRequest, TrainConfig
from clew.engine.feed import Courier
from clew.engine.processes import start_fabric
from clew.engine.setup import build_optimizer
from clew.engine.state import Readings
from clew.engine.step import build_step
from tests.engine.learning import Points, Samples, new_model, torch_loader, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CONFIG = TrainConfig(epochs=4, lr=1e-2)


def opener(samples: Samples) -> Any:
    def open_batches(settings: LoadSettings) -> Any:
        return torch_loader(
            samples, settings.batch_size, shuffle=settings.shuffle, pin_memory=settings.pin_memory
        )

    return open_batches


def run(folder: Path, *, samples: Samples | None = None, **changes: Any) -> Any:
    names = PlanRequest.__dataclass_fields__
    asked = {name: changes.pop(name) for name in list(changes) if name in names}
    fixed = {"device": "cuda", "precision": "fp32", "compile": False, "cuda_graph": False}
    request = PlanRequest(
        **{**fixed, "calibrate": False, "num_workers": 0, "batch_size": 16, **asked}
    )
    return train(
        folder,
        config=changes.pop("config", CONFIG),
        train=opener(samples or Samples(1000)),
        validation=opener(Samples(300, seed=1)),
        test=opener(Samples(300, seed=2)),
        request=request,
        **changes,
    )


def test_every_variant_gives_the_same_result(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"device": "cpu"},
        {},
        {"precision": "tf32"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"cuda_graph": True},
        {"cuda_graph": True, "precision": "bf16"},
        {"cuda_graph": True, "precision": "fp16"},
        {"cuda_graph": True, "batch_size": 8, "grad_accum": 2},
    ]
    results = [
        run(tmp_path / str(i), model=new_model(dropout=0.0), **way) for i, way in enumerate(ways)
    ]
    for way, result in zip(ways, results, strict=True):
        assert result.test["auroc"] == pytest.approx(results[0].test["auroc"], abs=0.01), way
        losses = [row["train_loss"] for row in result.history]
        assert losses == pytest.approx([r["train_loss"] for r in results[0].history], abs=0.03), way
        if result.plan.device == "cuda":
            assert 0 < result.peak_memory_bytes < 1 << 30
            assert 0 <= result.data_wait_share <= 1
    assert torch.get_float32_matmul_precision() == "highest"  # for whatever runs afterwards


@pytest.mark.parametrize("graph", [False, True])
def test_stopped_run_resumes(tmp_path: Path, graph: bool) -> None:
    run(tmp_path / "unbroken", cuda_graph=graph, model=new_model(dropout=0.0))
    steps = iter(range(10_000))
    with pytest.raises(TrainingStoppedError):
        run(tmp_path / "run", cuda_graph=graph, should_stop=lambda: next(steps) > 100)
    run(tmp_path / "run", cuda_graph=graph, model=new_model(dropout=0.0))
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("graph", [False, True])
def test_sample_with_non_finite_data_is_named(tmp_path: Path, graph: bool) -> None:
    """Although it is noticed many steps later."""
    samples = Samples(1000)
    samples.x[77, 2] = np.nan
    with pytest.raises(
        TrainingError, match=r'the loss is nan in epoch 1.* NaN or infinity: "x" of q77\.'
    ):
        run(tmp_path, samples=samples, cuda_graph=graph)


class Large(Points):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return super().forward({"x": batch["x"] * 1e5}) * 1e-5


@pytest.mark.parametrize("graph", [False, True])
def test_fp16_is_switched_off(tmp_path: Path, graph: bool) -> None:
    result = run(tmp_path, model=Classifier(Large()), precision="fp16", cuda_graph=graph)
    assert result.plan.precision in ("bf16", "fp32")
    assert result.test["auroc"] > 0.8


class Hungry(Points):
    """Takes more memory than there is for more than 4 samples."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        if self.training:
            whole = torch.cuda.get_device_properties(0).total_memory
            torch.empty(len(batch["x"]) * whole // 5, dtype=torch.uint8, device="cuda")
        return super().forward(batch)


def test_step_that_does_not_fit_is_split(tmp_path: Path) -> None:
    result = run(tmp_path, model=Classifier(Hungry()), config=TrainConfig(epochs=1, lr=1e-2))
    assert (result.plan.batch_size, result.plan.grad_accum) == (4, 4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("graph", [False, True])
def test_step_never_waits_for_the_device(graph: bool) -> None:
    fabric = start_fabric("cuda")
    plan = HardwarePlan(device="cuda", cuda_graph=graph)
    model = new_model().cuda()
    optimizer = build_optimizer(model, TrainConfig(), lr=0.1, capturable=graph)
    step = build_step(model, plan.variant, optimizer, fabric)
    courier, readings = Courier(fabric.device), Readings(fabric.device)
    batches = list(torch_loader(Samples(640), pin_memory=True))
    for batch in batches[:5]:
        step.run([courier.bring(batch)], 0.1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            readings.add(step.run([courier.bring(batch)], 0.1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(readings.read()) == len(batches)


def test_batches_arrive_intact_on_the_device() -> None:
    """Memory that a loader reuses is not touched before it was copied."""
    courier = Courier(torch.device("cuda"))
    memory = torch.empty(1 << 22, pin_memory=True)
    sums = []
    for number in range(20):
        batch = {"x": memory.fill_(number) if number == 0 else memory.clone().pin_memory()}
        batch["x"].fill_(number)
        sums.append(courier.bring(batch)["x"].mean())
        courier.keep(batch)
    assert [round(value.item()) for value in sums] == list(range(20))


def test_channels_last_trains_on_the_gpu(tmp_path: Path) -> None:
    class Image(Points):
        def __init__(self) -> None:
            super().__init__()
            self.image = torch.nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            image = batch["x"][:, None, :, None].expand(-1, -1, -1, 6)
            return super().forward(batch) + self.image(image).mean((1, 2, 3))[:, None]

    assert run(tmp_path, model=Classifier(Image()), channels_last=True).plan.channels_last
