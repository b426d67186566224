"""Weights cast all at once give the same values and gradients as autocast."""

import pytest
import torch
from torch import nn

from clew.engine.step import WeightCast

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.classify = nn.Linear(8, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.norm(self.convolve(images)).mean(dim=(2, 3)))


@pytest.mark.parametrize("device", DEVICES)
def test_casting_at_once_equals_autocast(device: str) -> None:
    torch.manual_seed(0)
    network, images = Network().to(device), torch.randn(5, 3, 9, 9, device=device)
    weights = list(network.parameters())
    results = []
    for cast in (False, True):
        network.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            if cast:
                with WeightCast(network, "bf16").applied():
                    assert network.convolve.weight.dtype == torch.bfloat16
                    assert network.norm.weight.dtype == torch.float32
                    answer = network(images)
            else:
                answer = network(images)
        answer.float().square().sum().backward()
        results.append([answer.float(), *(w.grad for w in weights if w.grad is not None)])
    assert [id(w) for w in network.parameters()] == [id(w) for w in weights]
    assert network.unused.weight.grad is None
    for plain, together in zip(*results, strict=True):
        assert together.dtype == torch.float32
        assert torch.allclose(together, plain, atol=1e-2, rtol=1e-2)


def test_weights_are_restored_after_an_error() -> None:
    network = Network()
    with pytest.raises(RuntimeError, match="broken"), WeightCast(network, "bf16").applied():
        raise RuntimeError("broken")
    assert isinstance(network.convolve.weight, nn.Parameter)
