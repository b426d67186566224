"""A step that does not fit in memory is split into smaller parts, with the same result."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from clew.base.errors import TrainingError
from clew.engine import Classifier, Event, HardwarePlan, PlanRequest, TrainConfig
from clew.engine.setup import shrink_micro_batch
from tests.engine.learning import PLAIN, Points, Samples, open_loader, torch_loader, train
from tests.events import notes


class Failing(nn.Module):
    """Out of memory, as PyTorch reports it, for more samples than `fits`, from call `after` on."""

    def __init__(self, fits: int, after: int = 0) -> None:
        super().__init__()
        self.fits, self.calls_left, self.network = fits, after, Points(dropout=0.0)
        self.sizes: set[int] = set()

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        size = len(batch["label"])
        self.calls_left -= self.training
        if self.training and size > self.fits and self.calls_left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is")
        self.sizes.add(size)
        return self.network(batch)


def run(folder: Path, *, batch_size: int, **options: Any) -> Any:
    torch.manual_seed(3)
    model = Classifier(Failing(**options))
    events: list[Event] = []
    result = train(
        folder,
        model=model,
        request=PlanRequest(**{**vars(PLAIN), "batch_size": batch_size}),
        config=TrainConfig(epochs=2, lr=1e-2),
        reporter=events.append,
    )
    return result, notes(events), model.network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "fits", "after", "parts"),
    [(32, 10, 0, (8, 4)), (32, 16, 9, (16, 2)), (15, 6, 3, (5, 3)), (14, 1, 1, (1, 14))],
)
def test_smaller_parts_give_the_same_network(
    tmp_path: Path, batch_size: int, fits: int, after: int, parts: tuple[int, int]
) -> None:
    """Also in the middle of an epoch, and for batches that cannot be halved."""
    whole, _, _ = run(tmp_path / "whole", batch_size=batch_size, fits=1000)
    result, said, network = run(tmp_path / "parts", batch_size=batch_size, fits=fits, after=after)
    assert (result.plan.batch_size, result.plan.grad_accum) == parts
    assert any("ran out of memory" in sentence for sentence in said)
    assert "ran out of memory" in result.plan.reasons["batch_size"]
    assert result.history[-1]["step"] == whole.history[-1]["step"]
    weights = [load_file(tmp_path / name / "last.safetensors") for name in ("whole", "parts")]
    for name, value in weights[0].items():
        if name.startswith("model/"):
            assert value.allclose(weights[1][name], atol=1e-5), name
    assert [row["train_loss"] for row in result.history] == pytest.approx(
        [row["train_loss"] for row in whole.history], abs=1e-5
    )


@pytest.mark.slow
def test_resumed_run_keeps_the_smaller_parts(tmp_path: Path) -> None:
    steps = iter(range(1000))
    options: dict[str, Any] = {
        "request": PlanRequest(**{**vars(PLAIN), "batch_size": 16}),
        "config": TrainConfig(epochs=2, lr=1e-2),
    }
    with pytest.raises(Exception, match="stopped in"):
        train(
            tmp_path,
            model=Classifier(Failing(8)),
            should_stop=lambda: next(steps) > 5,
            **options,
        )
    model = Classifier(Failing(1000))
    result = train(tmp_path, model=model, **options)
    assert (result.plan.batch_size, result.plan.grad_accum) == (8, 2)
    assert max(model.network.sizes) == 8


@pytest.mark.slow
def test_single_sample_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="step 1 ran out of memory with 1 sample .* a single"):
        run(tmp_path, batch_size=4, fits=0)


def test_processes_get_a_batch_size_they_can_share() -> None:
    plan = HardwarePlan(processes=2, batch_size=12, grad_accum=1)
    with pytest.raises(TrainingError, match="`batch_size=6` and `grad_accum=2` to resume"):
        shrink_micro_batch(plan, is_ready_made=False, step=0)
    plan = HardwarePlan(processes=2, batch_size=6, grad_accum=1)
    with pytest.raises(TrainingError, match="`batch_size=2` and `grad_accum=3` to resume"):
        shrink_micro_batch(plan, is_ready_made=False, step=0)


def test_ready_made_loader_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="has a fixed batch size"):
        train(
            tmp_path,
            model=Classifier(Failing(8)),
            train=torch_loader(Samples(64)),
            validation=open_loader(Samples(20)),
            request=PLAIN,
        )


def test_other_errors_are_not_mistaken_for_out_of_memory(tmp_path: Path) -> None:
    class Broken(Points):
        def forward(self, _batch: dict[str, Any]) -> torch.Tensor:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(tmp_path, model=Classifier(Broken()))
