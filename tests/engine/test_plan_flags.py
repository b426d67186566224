"""Every override takes effect, in a real run on the CPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from clew.engine import Classifier, FitResult, PlanRequest, TrainConfig, fit
from tests.engine.planning.making import Opener

pytestmark = pytest.mark.slow

PLAIN: dict[str, Any] = {
    "device": "cpu",
    "amp": False,
    "compile": False,
    "num_workers": 0,
    "batch_size": 20,
    "calibrate": False,
}


class Witness(nn.Module):
    """A network that records how it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 1)
        self.dtypes: set[torch.dtype] = set()
        self.layouts: set[bool] = set()
        self.sizes: list[int] = []
        self.threads: set[int] = set()

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        hidden = self.layer(batch["x"])
        if self.training:
            self.dtypes.add(hidden.dtype)
            self.sizes.append(len(hidden))
            self.threads.add(torch.get_num_threads())
            weight = self.layer.weight
            self.layouts.add(weight.is_contiguous(memory_format=torch.channels_last))
            self.layouts.add(batch["x"].is_contiguous(memory_format=torch.channels_last))
        return self.out(hidden.relu().mean((2, 3)))[:, 0]


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """Counts the optimizer's steps."""
    counted = [0]

    def count(*_: object) -> None:
        counted[0] += 1

    hook = register_optimizer_step_post_hook(count)
    yield counted
    hook.remove()


def run(folder: Path, **asked: Any) -> tuple[Witness, Opener, FitResult]:
    torch.manual_seed(0)
    witness, opener = Witness(), Opener(samples=100, shape=(3, 6, 6))
    result = fit(
        Classifier(witness),
        opener,
        opener,
        config=TrainConfig(epochs=2),
        request=PlanRequest(**PLAIN | asked),
        output_dir=folder,
    )
    return witness, opener, result


def test_amp_is_applied(tmp_path: Path) -> None:
    assert run(tmp_path / "off")[0].dtypes == {torch.float32}
    assert run(tmp_path / "on", amp=True)[0].dtypes == {torch.bfloat16}


def test_channels_last_is_applied(tmp_path: Path) -> None:
    assert run(tmp_path / "off", channels_last=False)[0].layouts == {False}
    assert run(tmp_path / "on", channels_last=True)[0].layouts == {True}


def test_batch_size_and_grad_accum_are_applied(tmp_path: Path, steps: list[int]) -> None:
    witness, _, _ = run(tmp_path / "one", batch_size=10)
    assert (witness.sizes, steps) == ([10] * 20, [20])
    witness, _, result = run(tmp_path / "two", batch_size=10, grad_accum=5)
    assert (witness.sizes, steps) == ([10] * 20, [24])
    assert result.plan.effective_batch == 50


def test_loading_settings_are_applied(tmp_path: Path) -> None:
    _, opener, _ = run(tmp_path, num_workers=3, max_cache_batches=2)
    assert {(s.num_workers, s.max_cache_batches) for s in opener.asked} == {(3, 2)}
    assert all(s.persistent_workers and not s.pin_memory for s in opener.asked)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def note(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", note)
    run(tmp_path / "off")
    assert not compiled
    run(tmp_path / "on", compile=True)
    assert [function.__name__ for function in compiled] == ["training_step"]


def test_gradient_checkpointing_is_applied(tmp_path: Path) -> None:
    once, _, plain = run(tmp_path / "off")
    assert "forward" not in vars(once.layer)
    wrapped, _, result = run(tmp_path / "on", gradient_checkpointing=True)
    assert "forward" in vars(wrapped.layer)
    assert result.history[-1]["train_loss"] == plain.history[-1]["train_loss"]


def test_threads_are_applied_and_come_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    for count in (1, 2):
        witness, _, result = run(tmp_path / str(count), threads=count)
        assert witness.threads == {count} == {result.plan.threads}
        assert torch.get_num_threads() == before


def test_run_saves_its_plan_with_the_reasons(tmp_path: Path) -> None:
    run(tmp_path, reasons={"batch_size": "to fine-tune"})
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert saved["reasons"]["precision"] == "requested with `amp=False`"
    assert saved["reasons"]["num_workers"].startswith("requested with `num_workers=0`")
    assert saved["reasons"]["batch_size"] == "to fine-tune"  # nobody has requested it


def test_run_calibrates_by_itself(tmp_path: Path) -> None:
    _, _, result = run(tmp_path, calibrate=True, amp=None, batch_size=None)
    assert len(result.plan.timings) == 1
    assert result.plan.reasons["channels_last"].startswith(
        "not measured: the run takes only about "
    )
