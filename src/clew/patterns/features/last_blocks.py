"""The last blocks of EfficientNet-Lite0 with its classifier, to be trained on cached feature maps:
a third of the network's work, without decoding, augmenting or running the rest."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.patterns.features.frozen import fold
from clew.patterns.networks.lite0 import EfficientNetLite0

# The first block that is trained: from here on no block has a stride, and maps are small.
FIRST_BLOCK = 12
_CEILING = 6.0

Maps = Float[Tensor, "batch rows columns channels"]


class LastBlocks(nn.Module):
    """Takes feature maps `[batch, rows, columns, 192]`, pixel by pixel; returns logits.

    Batch norms keep their statistics and are folded into the weights. Depthwise kernels are not
    trained: they have few weights, and their gradients would take most of the time.
    """

    def __init__(self, network: EfficientNetLite0) -> None:
        super().__init__()
        parts: Any = network
        self.blocks = nn.ModuleList(_Block(block) for block in parts._blocks[FIRST_BLOCK:])
        self.last = _Mix(parts._conv_head, parts._bn1)
        self.classify = nn.Linear(parts._fc.in_features, parts._fc.out_features)
        self.dropout = nn.Dropout(parts._dropout.p)

    def forward(self, maps: Maps) -> Float[Tensor, "batch classes"]:
        return self.classify(self.dropout(self.embed(maps)))

    def embed(self, maps: Maps) -> Float[Tensor, "batch 1280"]:
        """The mean of the last feature map."""
        for block in self.blocks:
            maps = block(maps)
        return self.last(maps).clamp(0, _CEILING).flatten(1, 2).mean(1)

    @torch.no_grad()
    def write_into(self, network: EfficientNetLite0) -> None:
        """Give the network these weights: its batch norms stay, so that it computes the same."""
        parts: Any = network
        blocks: Any = self.blocks
        for mine, theirs in zip(blocks, parts._blocks[FIRST_BLOCK:], strict=True):
            mine.widen.write_into(theirs._expand_conv, theirs._bn0)
            theirs._bn1.bias.copy_(mine.filter_bias + _shift(theirs._bn1))
            mine.narrow.write_into(theirs._project_conv, theirs._bn2)
        self.last.write_into(parts._conv_head, parts._bn1)
        parts._fc.load_state_dict(self.classify.state_dict())


class _Block(nn.Module):
    kernel: Tensor

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.widen = _Mix(block._expand_conv, block._bn0)
        kernel, bias = fold(block._depthwise_conv, block._bn1)
        self.register_buffer("kernel", kernel.contiguous(memory_format=torch.channels_last))
        self.filter_bias = nn.Parameter(bias)
        self.narrow = _Mix(block._project_conv, block._bn2)
        self._adds_input = block._adds_input

    def forward(self, maps: Maps) -> Maps:
        wide = self.widen(maps).clamp(0, _CEILING)
        filtered = _Depthwise.apply(wide.permute(0, 3, 1, 2), self.kernel).permute(0, 2, 3, 1)
        found = self.narrow((filtered + self.filter_bias).clamp(0, _CEILING))
        return found + maps if self._adds_input else found


class _Mix(nn.Module):
    """A convolution of single pixels as a matrix product."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        weight, bias = fold(convolution, norm)
        self.weight, self.bias = nn.Parameter(weight.flatten(1)), nn.Parameter(bias)

    def forward(self, maps: Maps) -> Maps:
        return F.linear(maps, self.weight, self.bias)

    def write_into(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        scale = _scale(norm)[:, None]
        is_used = scale.abs() > torch.finfo(scale.dtype).tiny
        weight = torch.where(is_used, self.weight / scale, convolution.weight.flatten(1))
        convolution.weight.copy_(weight[:, :, None, None])
        norm.bias.copy_(self.bias + _shift(norm))


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution whose kernel is not trained: the gradient of its input is the same
    convolution with the kernel turned around, which is far faster than PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(kernel)
        return _convolve(images, kernel)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        [kernel] = ctx.saved_tensors
        return _convolve(gradient, kernel.flip(2, 3)), None


def _convolve(images: Tensor, kernel: Tensor) -> Tensor:
    images = images.contiguous(memory_format=torch.channels_last)
    return F.conv2d(images, kernel, padding=kernel.shape[2] // 2, groups=len(kernel))


def _scale(norm: nn.BatchNorm2d) -> Tensor:
    assert norm.running_var is not None
    return norm.weight / torch.sqrt(norm.running_var + norm.eps)


def _shift(norm: nn.BatchNorm2d) -> Tensor:
    assert norm.running_mean is not None
    return norm.running_mean * _scale(norm)
