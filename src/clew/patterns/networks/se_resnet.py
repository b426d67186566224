"""SE-ResNet: a residual network whose blocks reweight their own channels (arXiv 1709.01507)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

# Up to these sides, a stem that halves the image twice, or once, would leave too little of it.
_KEEP_UP_TO, _HALVE_UP_TO = 40, 80
_STD = 0.02
_SQUEEZE = 16  # the channels between both layers that reweight a block are so many times fewer
_MOST_PLACES, _FEWEST_CHANNELS = 36, 256

Images = Float[Tensor, "batch channels rows columns"]


class SEResNet(nn.Module):
    """Takes normalized images `[batch, 3, height, width]`; returns logits `[batch, classes]`.
    `widths` and `blocks` are the channels and the number of blocks of each stage.

    Small images pass a stem that keeps their size, so that the blocks see about as many positions
    in an image of 32 pixels as in one of 128.
    """

    def __init__(
        self,
        classes: int,
        image_size: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (3, 3, 3, 3),
    ) -> None:
        super().__init__()
        self.stem = _stem(image_size, widths[0])
        self.blocks = nn.ModuleList(_blocks(widths, blocks))
        self.classify = nn.Linear(widths[-1], classes)
        _initialize(self)

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(images))

    def features(self, images: Images) -> Images:
        """The features of the last block, per position."""
        found = self.stem(images)
        for block in self.blocks:
            found = block(found)
        return found

    def head(self, features: Images) -> Float[Tensor, "batch classes"]:
        return self.classify(features.mean(dim=(2, 3)))


class SEBlock(nn.Module):
    """Two convolutions; what they add is reweighted channel by channel."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(width_in, width, 3, stride)
        self.second = _convolution(width, width, 3, 1)
        self.squeeze = nn.Linear(width, max(4, width // _SQUEEZE))
        self.excite = nn.Linear(max(4, width // _SQUEEZE), width)
        changes = stride != 1 or width_in != width
        self.shortcut = _convolution(width_in, width, 1, stride) if changes else nn.Identity()

    def forward(self, images: Images) -> Images:
        found = self.second(F.relu(self.first(images), inplace=True))
        weights = self.excite(F.relu(self.squeeze(found.mean(dim=(2, 3))))).sigmoid()
        return F.relu(torch.addcmul(self.shortcut(images), found, weights[:, :, None, None]))


def _stem(image_size: int, width: int) -> nn.Sequential:
    if image_size <= _KEEP_UP_TO:
        return nn.Sequential(_convolution(3, width, 3, 1), nn.ReLU(inplace=True))
    if image_size <= _HALVE_UP_TO:
        return nn.Sequential(_convolution(3, width, 5, 2), nn.ReLU(inplace=True))
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(_convolution(3, width, 7, 2), nn.ReLU(inplace=True), pool)


def _blocks(widths: Sequence[int], counts: Sequence[int]) -> list[SEBlock]:
    blocks, width_in = [], widths[0]
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
        for place in range(count):
            blocks.append(SEBlock(width_in, width, 2 if stage and not place else 1))
            width_in = width
    return blocks


def _convolution(width_in: int, width: int, size: int, stride: int) -> nn.Sequential:
    """A convolution followed by batch norm."""
    if size == 3:
        return nn.Sequential(Conv3x3(width_in, width, stride), nn.BatchNorm2d(width))
    convolution = nn.Conv2d(width_in, width, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


def _initialize(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=_STD, a=-2 * _STD, b=2 * _STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, SEBlock):
            # Zero-initialize the last batch norm: every block starts as the identity.
            nn.init.zeros_(module.second[1].get_parameter("weight"))


class Conv3x3(nn.Conv2d):
    """A convolution without bias that keeps the image size, or halves it with `stride` 2.

    Over few positions it is a matrix product where that is faster: in 16 bits on a CPU, oneDNN
    takes two to four times as long for the forward and backward pass of a wide convolution over 6 x
    6 positions or fewer, as in deep layers.
    """

    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__(width_in, width, 3, stride, padding=1, bias=False)

    def forward(self, images: Images) -> Images:
        if self._is_better_as_product(images):
            return _ConvolutionProduct.apply(images.bfloat16(), self.weight.bfloat16())
        return super().forward(images)

    def _is_better_as_product(self, images: Images) -> bool:
        wide = min(self.in_channels, self.out_channels) >= _FEWEST_CHANNELS
        few = images.shape[2] * images.shape[3] <= _MOST_PLACES and self.stride == (1, 1)
        if not (wide and few) or images.is_cuda or not torch.is_grad_enabled():
            return False
        in_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return in_bf16 == torch.bfloat16 and not torch.compiler.is_compiling()


class _ConvolutionProduct(torch.autograd.Function):
    """A 3x3 convolution as a matrix product (im2col): rows are the positions of all images, columns
    the pixels around each."""

    @staticmethod
    def forward(ctx: Any, images: Images, weight: Tensor) -> Images:
        around, matrix = _look_around(images), weight.permute(0, 2, 3, 1).flatten(1)
        ctx.save_for_backward(around, matrix)
        ctx.shape = images.shape
        return _as_pictures(around @ matrix.T, images.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Images) -> tuple[Images, Tensor]:
        around, matrix = ctx.saved_tensors
        rows = gradient.permute(0, 2, 3, 1).reshape(len(around), -1)
        kernel = matrix.unflatten(1, (3, 3, -1))
        # The gradient comes back from the neighbors through the flipped kernel.
        turned = kernel.flip(1, 2).permute(1, 2, 0, 3).flatten(0, 2)
        given = _as_pictures(_look_around(gradient) @ turned, ctx.shape)
        return given, (rows.T @ around).unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)


def _look_around(images: Images) -> Float[Tensor, "places around"]:
    batch, channels, rows, columns = images.shape
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    of_picture, of_row, of_column, of_channel = padded.stride()
    windows = padded.as_strided(
        (batch, rows, columns, 3, 3, channels),
        (of_picture, of_row, of_column, of_row, of_column, of_channel),
    )
    return windows.reshape(batch * rows * columns, 9 * channels)


def _as_pictures(places: Tensor, shape: torch.Size) -> Images:
    """Turn rows of positions back into images, in channels_last layout."""
    batch, _, rows, columns = shape
    return places.unflatten(0, (batch, rows, columns)).permute(0, 3, 1, 2)
