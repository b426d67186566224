"""Non-finite values stop the run with a useful error; fp16 is switched off instead."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from clew.base.errors import TrainingError
from clew.base.progress import Event
from clew.cli.renderer import Renderer
from clew.engine import Classifier, HardwarePlan, StepOutput, TrainConfig, trainer
from clew.engine.loop import find_wrong_inputs
from clew.engine.setup import build_optimizer
from clew.engine.step import EagerStep, build_precision
from tests.engine.children import tensors
from tests.engine.learning import Points, Samples, new_model, open_loader, torch_loader, train
from tests.events import notes

pytestmark = pytest.mark.slow


def spoiled(value: float = np.nan) -> Samples:
    samples = Samples(200)
    samples.x[77, 2] = value
    return samples


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sample_with_non_finite_data_is_named(tmp_path: Path, value: float) -> None:
    with pytest.raises(
        TrainingError,
        match=r"the loss is nan in epoch 1, step \d+ \(samples: .*\). .* NaN or infinity: "
        r'"x" of q77\. Exclude',
    ):
        train(tmp_path, train=open_loader(spoiled(value)))


def test_checkpoint_before_the_fault_is_valid(tmp_path: Path) -> None:
    config = TrainConfig(epochs=1, lr=1e-2, checkpoint_every_seconds=0)
    with pytest.raises(TrainingError):
        train(tmp_path, train=open_loader(spoiled()), config=config)
    saved = tensors(tmp_path / "last.safetensors")
    weights = [v for k, v in saved.items() if k.startswith("model/")]
    assert all(np.isfinite(np.frombuffer(v, np.float32)).all() for v in weights)
    with pytest.raises(TrainingError, match="q77"):  # and again, from there
        train(tmp_path, train=open_loader(spoiled()), config=config)


class Exploding(Points):
    """Its loss grows without bound."""

    def training_step(self, batch: dict[str, Any]) -> StepOutput:
        scores = self(batch)[:, 0]
        return StepOutput(loss=(scores.exp().exp() * 1e30).mean(), scores=scores)


def test_divergence_error_says_what_to_try(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(TrainingError, match=r"The data is finite, .* try a lower `lr`\. That step"):
        train(tmp_path, model=Exploding(), config=TrainConfig(epochs=20, lr=1e3))


def test_validation_samples_without_finite_scores_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"scores for 1 sample are non-finite \(q77\)"):
        train(tmp_path, validation=open_loader(spoiled()))


def test_non_finite_samples_of_a_graph_batch_are_found() -> None:
    from torch_geometric.data import Batch, Data

    graphs = [Data(x=torch.ones(3, 2), edge_attr=torch.ones(2, 1)) for _ in range(4)]
    for graph in graphs:
        graph.edge_index = torch.tensor([[0, 1], [1, 2]])
    graphs[3].x[1, 0] = torch.nan
    graphs[0].edge_attr[1] = torch.inf
    batch = Batch.from_data_list(graphs)  # two layers per sample
    batch.label, batch.question_id = torch.zeros(2), ["first", "second"]
    assert find_wrong_inputs(batch) == ['"x" of second', '"edge_attr" of first']


def planned(monkeypatch: pytest.MonkeyPatch, **choices: Any) -> None:
    """fp16 is refused on the CPU, where it is slow; it still works."""
    plain = trainer.plan_hardware

    def plan(*args: Any, **kwargs: Any) -> HardwarePlan:
        return replace(plain(*args, **kwargs), **choices)

    monkeypatch.setattr(trainer, "plan_hardware", plan)


class Large(Points):
    """Intermediate values that fp16 cannot represent."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return super().forward({"x": batch["x"] * 1e5}) * 1e-5


def test_fp16_is_switched_off_where_fp32_is_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, precision="fp16")
    torch.manual_seed(0)
    events: list[Event] = []
    result = train(tmp_path, model=Classifier(Large()), reporter=events.append)
    assert result.plan.precision == "bf16"
    assert result.plan.reasons["precision"].startswith(
        "fp16 produced non-finite values in epoch 1, step 1"
    )
    assert any("continuing in bf16" in sentence for sentence in notes(events))
    assert result.best_val["auroc"] > 0.6


def test_non_finite_data_is_not_blamed_on_fp16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, precision="fp16")
    with pytest.raises(TrainingError, match='"x" of q77'):
        train(tmp_path, train=open_loader(spoiled()))


class Steep(Points):
    """The scaler starts with a scale under which these gradients overflow."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return super().forward(batch) * 60


def test_fp16_trains_and_its_skipped_steps_are_not_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, precision="fp16")

    torch.manual_seed(0)
    result = train(tmp_path, model=Classifier(Steep()), config=TrainConfig(epochs=3, lr=1e-2))
    assert result.plan.precision == "fp16"
    assert result.best_val["auroc"] > 0.6


def test_epoch_of_skipped_steps_has_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, precision="fp16")

    torch.manual_seed(0)
    result = train(
        tmp_path,
        model=Classifier(Steep()),
        train=open_loader(Samples(16)),
        config=TrainConfig(epochs=12, lr=1e-2, patience=None),
        reporter=Renderer(Console(quiet=True)),
    )
    assert result.history[0]["train_loss"] is None
    assert result.history[-1]["train_loss"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_failed_step_changes_nothing(precision: Any) -> None:
    model = new_model()
    optimizer = build_optimizer(model, TrainConfig(), lr=0.1)
    step = EagerStep(
        model,
        optimizer,
        precision=build_precision(precision, torch.device("cpu")),
        max_norm=1.0,
        forward=model.training_step,
    )
    good, bad = next(iter(torch_loader(Samples(16)))), next(iter(torch_loader(Samples(16))))
    step.run([good], 0.1)
    before = [p.clone() for p in model.parameters()]
    moments = [value.clone() for s in optimizer.state.values() for value in s.values()]
    bad["x"][3, 1] = torch.nan
    assert not step.run([bad], 0.1).gradient_norm.isfinite()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    after = [value for s in optimizer.state.values() for value in s.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, moments, strict=True))
    assert step.run([good], 0.1).gradient_norm.isfinite()
