"""A convolution over few positions is a matrix product in 16 bits: same values, same gradients."""

import pytest
import torch
from torch.nn import functional as F

from clew.patterns.networks import se_resnet
from clew.patterns.networks.se_resnet import Conv3x3


def pass_both_ways(module: Conv3x3, images: torch.Tensor) -> list[torch.Tensor]:
    images = images.clone().requires_grad_()
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        answer = module(images)
    (answer.float() * torch.linspace(-1, 1, answer.numel()).view_as(answer)).sum().backward()
    return [answer.float().detach(), images.grad, module.weight.grad]


# On a CPU without bf16 instructions PyTorch warns once about which product it uses instead.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize(("batch", "side"), [(1, 1), (3, 4), (2, 6)])
def test_matrix_product_equals_convolution(
    monkeypatch: pytest.MonkeyPatch, batch: int, side: int, last: bool
) -> None:
    monkeypatch.setattr(se_resnet, "_FEWEST_CHANNELS", 32)  # 16 bits are slow where emulated
    torch.manual_seed(0)
    module, images = Conv3x3(32, 40), torch.randn(batch, 32, side, side)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
        module = module.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(images).grad_fn.name() == "_ConvolutionProductBackward"
    mine = pass_both_ways(module, images)
    module._is_better_as_product = lambda _: False
    theirs = pass_both_ways(module, images)
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).norm() <= 0.01 * other.norm()


@pytest.mark.slow
def test_pytorch_convolution_is_used_in_all_other_cases() -> None:
    module, images = Conv3x3(256, 256), torch.randn(2, 256, 4, 4)
    assert torch.equal(module(images), F.conv2d(images, module.weight, padding=1))
    with torch.autocast("cpu", torch.bfloat16):
        narrow, halving = Conv3x3(64, 64), Conv3x3(256, 256, stride=2)
        assert "Convolution" in narrow(images[:, :64]).grad_fn.name()
        assert "Convolution" in halving(images).grad_fn.name()
        with torch.no_grad():
            assert module(images).dtype == torch.bfloat16
