"""Gradient checkpointing: a lower peak, the same results."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from clew.base.memory import measure_peak_bytes
from clew.engine import Classifier
from clew.engine.setup import checkpoint_activations

CPU = torch.device("cpu")


def block(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width),
        nn.BatchNorm1d(4 * width),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(4 * width, width),
    )


class Deep(nn.Module):
    """Blocks in a list, and parts beside it."""

    def __init__(self, width: int = 16, depth: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        x = self.first(batch["x"])
        for one in self.blocks:
            x = x + one(x)
        return self.last(x)[:, 0]


def make_batch(samples: int = 64, width: int = 16) -> dict[str, Any]:
    x = torch.randn(samples, width, generator=torch.Generator().manual_seed(1))
    return {"x": x, "label": (x[:, 0] > 0).float()}


@pytest.fixture
def pair() -> tuple[Classifier, Classifier]:
    """The same model without checkpointing and with it."""
    torch.manual_seed(5)
    plain = Classifier(Deep())
    checkpointed = copy.deepcopy(plain)
    checkpoint_activations(checkpointed)
    return plain, checkpointed


def learn(model: Classifier, batch: dict[str, Any]) -> torch.Tensor:
    """One backward pass from fixed random numbers; gives the loss."""
    torch.manual_seed(8)
    loss = model.training_step(batch).loss
    loss.backward()
    return loss.detach()


def test_checkpointing_gives_the_same_results(pair: tuple[Classifier, Classifier]) -> None:
    plain, checkpointed = pair
    batch = make_batch()
    for _ in range(2):
        assert torch.equal(learn(plain, batch), learn(checkpointed, batch))
    gradients = ({n: p.grad for n, p in model.named_parameters()} for model in pair)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    # Including batch norm's running means, and the weights' names, by which they are saved.
    torch.testing.assert_close(plain.state_dict(), checkpointed.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
def test_checkpointing_lowers_the_peak(pair: tuple[Classifier, Classifier]) -> None:
    batch = make_batch(samples=2000)
    peaks = [measure_peak_bytes(lambda m=m: learn(m, batch), CPU) for m in pair]  # type: ignore[misc]
    assert peaks[1] < 0.5 * peaks[0]


def test_peak_counts_what_is_held_at_once() -> None:
    def run() -> None:
        first = torch.zeros(1000)
        second = first.view(10, 100) + 1
        del first
        torch.ones(500).add_(1)
        second.sum()

    outside = torch.zeros(9000)
    assert measure_peak_bytes(run, CPU) == 8000
    assert measure_peak_bytes(lambda: outside.view(90, 100), CPU) == 0


def test_evaluation_and_copies_work_as_before(pair: tuple[Classifier, Classifier]) -> None:
    plain, checkpointed = pair
    again = copy.deepcopy(checkpointed)
    checkpoint_activations(again)  # twice is the same as once
    batch = make_batch()
    assert torch.equal(learn(again, batch), learn(plain, batch))
    assert all(parameter.grad is None for parameter in checkpointed.parameters())
    for model in (plain, again):
        model.eval()
    with torch.no_grad():
        assert torch.equal(plain(batch), again(batch))


def test_network_may_checkpoint_its_own_way() -> None:
    class Own(Deep):
        is_on = False

        def enable_gradient_checkpointing(self) -> None:
            self.is_on = True

    model = Classifier(Own())
    checkpoint_activations(model)
    assert model.network.is_on
    assert "forward" not in vars(model.network.first)
