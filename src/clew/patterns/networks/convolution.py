"""3 x 3 convolutions over few places as matrix products, where that is faster.

In 16 bits on a CPU, oneDNN takes two to four times as long as a matrix product for the forward and
backward pass of a wide convolution over 6 x 6 places or fewer, as deep layers have them.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

_MOST_PLACES, _FEWEST_CHANNELS = 36, 256

Images = Float[Tensor, "batch channels rows columns"]


class Conv3x3(nn.Conv2d):
    """A convolution without bias whose pictures keep their size, or are halved by `stride` 2."""

    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__(width_in, width, 3, stride, padding=1, bias=False)

    def forward(self, images: Images) -> Images:
        if self._is_better_as_product(images):
            return _Product.apply(images.bfloat16(), self.weight.bfloat16())
        return super().forward(images)

    def _is_better_as_product(self, images: Images) -> bool:
        wide = min(self.in_channels, self.out_channels) >= _FEWEST_CHANNELS
        few = images.shape[2] * images.shape[3] <= _MOST_PLACES and self.stride == (1, 1)
        if not (wide and few) or images.is_cuda or not torch.is_grad_enabled():
            return False
        in_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return in_bf16 == torch.bfloat16 and not torch.compiler.is_compiling()


class _Product(torch.autograd.Function):
    """Rows are the places of all pictures, columns what lies around each."""

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
        # What a place has given to its neighbours comes back from them: the kernel turned round.
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
    """Laid out as channels_last."""
    batch, _, rows, columns = shape
    return places.unflatten(0, (batch, rows, columns)).permute(0, 3, 1, 2)
