"""What a user gets from `fit`: a trained network, its metrics, and files to look at."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from clew.base.errors import InputError, StoreError, TrainingStoppedError
from clew.engine import (
    CategoricalLoss,
    Classifier,
    EpochEnded,
    Event,
    PlanRequest,
    StepOutput,
    TrainConfig,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    fit,
)
from clew.engine.model_files import read_model
from tests.engine.learning import (
    PLAIN,
    Points,
    Samples,
    new_model,
    open_loader,
    torch_loader,
    train,
)
from tests.events import notes, pick


@pytest.mark.slow
def test_fit_trains_and_reports(tmp_path: Path) -> None:
    events: list[Event] = []
    model = new_model()
    config = TrainConfig(epochs=8, lr=2e-2)
    result = train(tmp_path, model=model, config=config, reporter=events.append)
    [started] = pick(events, TrainingStarted)
    assert (started.epochs, started.steps, started.done_steps) == (8, 104, 0)
    assert [event.row["epoch"] for event in pick(events, EpochEnded)] == list(range(1, 9))
    assert isinstance(events[-1], TrainingEnded)
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    assert result.test is not None and result.test["auroc"] > 0.9
    assert result.best_val["auroc"] == max(row["val_auroc"] for row in result.history)
    assert 0 < result.threshold < 1
    assert result.parameters == 6 * 16 + 16 + 16 + 1
    assert result.samples_per_second > 0 and 0 <= result.data_wait_share <= 1
    assert result.peak_memory_bytes > 1 << 20
    assert json.loads((tmp_path / "plan.json").read_text())["batch_size"] == 16


@pytest.mark.slow
def test_model_and_file_have_the_weights_of_the_best_epoch(tmp_path: Path) -> None:
    model = new_model()
    result = train(tmp_path, model=model, config=TrainConfig(epochs=6, lr=0.5))
    saved = read_model(tmp_path / "best.safetensors")
    weights, about = saved.read(saved.kinds), saved.about
    assert about["best"]["epoch"] + 1 == result.best_epoch
    assert about["best"]["metrics"] == result.best_val
    assert about["best"]["threshold"] == result.threshold
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def test_callbacks_get_every_event_after_the_reporter(tmp_path: Path) -> None:
    events: list[tuple[str, Event]] = []
    result = train(
        tmp_path,
        config=TrainConfig(epochs=1),
        reporter=lambda event: events.append(("reporter", event)),
        callbacks=[
            lambda event: events.append(("first", event)),
            lambda event: events.append(("second", event)),
        ],
    )
    assert [name for name, _ in events] == ["reporter", "first", "second"] * (len(events) // 3)
    assert isinstance(events[0][1], TrainingStarted)
    assert events[0][1].output_dir == tmp_path
    assert events[0][1].settings["config"]["epochs"] == 1
    assert events[-1][1] == TrainingEnded(result=result)


def test_callbacks_are_notified_when_run_stops(tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(TrainingStoppedError):
        train(tmp_path, callbacks=[events.append], should_stop=lambda: True)
    assert events[-1] == TrainingEnded(result=None)


def test_callback_of_a_finished_run_is_not_called(tmp_path: Path) -> None:
    train(tmp_path, config=TrainConfig(epochs=1))
    events: list[Event] = []
    train(tmp_path, config=TrainConfig(epochs=1), callbacks=[events.append])
    assert events == []


@pytest.mark.slow
def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    events: list[Event] = []
    config = TrainConfig(epochs=200, lr=2e-2, patience=4)
    result = train(tmp_path, config=config, reporter=events.append)
    assert len(result.history) == result.best_epoch + 4 < 200
    assert notes(events)[-1].startswith(
        "stopped early: 4 epochs without a better auroc than in epoch"
    )


def test_validation_with_one_class_falls_back_to_loss(tmp_path: Path) -> None:
    samples = Samples(40, seed=1)
    events: list[Event] = []
    samples.label[:] = 1
    result = train(tmp_path, validation=open_loader(samples), reporter=events.append)
    losses = [row["val_loss"] for row in result.history]
    assert result.best_epoch == 1 + losses.index(min(losses))
    assert result.best_val["auroc"] is None
    assert any("auroc is not defined on the validation samples" in s for s in notes(events))
    assert ",," in (tmp_path / "log.csv").read_text().splitlines()[1]


def test_fit_works_without_validation_and_test(tmp_path: Path) -> None:
    result = train(tmp_path, validation=None, test=None)
    assert (result.test, result.threshold, set(result.best_val)) == (None, None, {"loss"})
    assert result.best_epoch == 3


@pytest.mark.slow
def test_fit_trains_several_classes(tmp_path: Path) -> None:
    def data(seed: int) -> Any:
        return open_loader(Samples(200, seed, classes=3))

    model = Classifier(Points(outputs=3), CategoricalLoss(class_weights=(1, 2, 1)))
    config = TrainConfig(epochs=8, lr=2e-2, monitor="accuracy")
    result = train(
        tmp_path, model=model, config=config, train=data(0), validation=data(1), test=data(2)
    )
    assert result.test is not None
    assert result.test["accuracy"] > 0.6 and result.test["auroc"] > 0.8
    assert result.threshold is None


@pytest.mark.slow
def test_custom_module_trains_on_custom_batches(tmp_path: Path) -> None:
    """A regression, on PyTorch's plain tuples: no labels, no scores."""

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

        def training_step(self, batch: Any) -> StepOutput:
            x, y = batch
            return StepOutput(loss=(self.line(x) - y).square().mean())

    x = torch.linspace(-1, 1, 64)[:, None]
    data = torch.utils.data.TensorDataset(x, 3 * x + 1)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = Line()
    config = TrainConfig(epochs=40, lr=0.2)
    result = fit(model, loader, loader, config=config, request=PLAIN, output_dir=tmp_path)
    assert model.line.weight.item() == pytest.approx(3, abs=0.1)
    assert result.plan.batch_size == 16


@pytest.mark.slow
def test_same_seed_gives_the_same_network(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        model = new_model()
        train(tmp_path / name, model=model, config=TrainConfig(epochs=2, lr=1e-2, seed=seed))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not torch.equal(weights[0][0], weights[2][0])


def test_default_learning_rate_scales_with_the_root_of_the_batch(tmp_path: Path) -> None:
    request = PlanRequest(**{**vars(PLAIN), "batch_size": 16, "grad_accum": 8})
    result = train(tmp_path, config=TrainConfig(epochs=5, warmup_fraction=0.0), request=request)
    assert TrainConfig().peak_lr(128) == pytest.approx(2e-3)
    assert result.history[0]["lr"] < 2e-3


@pytest.mark.slow
def test_progress_is_reported(tmp_path: Path) -> None:
    class Slow(Points):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            torch.randn(600, 600) @ torch.randn(600, 600)
            return super().forward(batch)

    events: list[Event] = []
    train(tmp_path, model=Classifier(Slow()), config=TrainConfig(epochs=4), reporter=events.append)
    seen = pick(events, TrainingProgress)
    assert seen, "a run of one second reports its progress"
    assert all(p.samples_per_second > 0 and p.loss and p.memory_bytes > 0 for p in seen)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_epochs(tmp_path: Path) -> None:
    used: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, EpochEnded):
            used.append(psutil.Process().memory_info().rss)

    config = TrainConfig(epochs=60, patience=None, checkpoint_every_seconds=0.1)
    train(tmp_path, config=config, reporter=watch)
    assert max(used[30:]) - max(used[:30]) < 4 << 20


class Mean(Points):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return super().forward(batch).mean(0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": nn.Linear(2, 1)}, "Linear cannot be trained: it must be .* training_step"),
        ({"train": open_loader(Samples(0))}, "there are no batches"),
        ({"validation": open_loader(Samples(0))}, "there are no batches"),
        ({"model": Classifier(Mean())}, r"returns logits of shape \(1,\) for 16 labels"),
    ],
)
def test_unusable_input_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        train(tmp_path, **changes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs is 0: it must be 1 or more"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"patience": 0}, "patience is 0"),
        ({"monitor": "luck"}, 'monitor is "luck": it must be one of auroc, loss, accuracy'),
        ({"warmup_fraction": 1.0}, "warmup_fraction is 1.0"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TrainConfig(**options)


def test_contradictory_requests_are_refused() -> None:
    with pytest.raises(InputError, match='`precision="bf16"` and `amp=False` contradict'):
        PlanRequest(precision="bf16", amp=False)
    with pytest.raises(InputError, match="batch_size is 0"):
        PlanRequest(batch_size=0)


@pytest.mark.slow
def test_tied_and_channels_last_weights_are_saved(tmp_path: Path) -> None:
    class Tied(Points):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.layers[0]
            self.image = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            image = batch["x"][:, None, :, None].expand(-1, 2, -1, 6)
            return super().forward(batch) + self.image(image).mean((1, 2, 3))[:, None]

    model = Classifier(Tied())
    train(tmp_path, model=model, train=torch_loader(Samples(64)), request=PLAIN)
    saved = read_model(tmp_path / "best.safetensors")
    weights = saved.read(saved.kinds)
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    assert np.isfinite(weights["network.again.weight"]).all()


@pytest.mark.slow
def test_truncated_result_is_named_and_can_be_created_again(tmp_path: Path) -> None:
    before = train(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreError, match=r"result\.json.* cannot be read .* delete it"):
        train(tmp_path)
    path.unlink()
    assert train(tmp_path).test == before.test


def test_weights_file_is_readable_by_other_users(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        train(tmp_path)
    finally:
        os.umask(before)
    files = ("best.safetensors", "last.safetensors", "result.json")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in files} == {0o644}
