"""EfficientNet-Lite0 with batch norms folded into the convolutions: all of it for inference alone,
and its last blocks to be trained on feature maps, a third of the network's work."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_weights

from clew.base.cpu import fast_convolutions, time_on_core
from clew.patterns.networks.classifier import normalize
from clew.patterns.networks.lite0 import STAGE_BLOCKS, DepthwiseConvolution, EfficientNetLite0

# "products": a convolution of single pixels is a matrix product. On ARM without SVE that is 1.7
# times as fast as PyTorch's own convolutions in channels_last, which are best elsewhere.
Form = Literal["products", "convolutions"]
FORMS: tuple[Form, ...] = get_args(Form)
_CEILING = 6.0
_TIMED_SIDE, _TIMED_IMAGES = 160, 2

Maps = Float[Tensor, "batch channels rows columns"]
Step = Callable[[Maps], Maps]
# The first block that is trained: from here on no block has a stride, and maps are small.
FIRST_BLOCK = 12
PixelMaps = Float[Tensor, "batch rows columns channels"]


class FrozenLite0:
    """The network as functions of images; its weights never change. Calls from several threads at
    once are safe."""

    def __init__(
        self, network: EfficientNetLite0, form: Form, device: str | torch.device = "cpu"
    ) -> None:
        self._scaled_for, self.form, self.device = network, form, torch.device(device)
        parts: Any = network
        self._stem = self._filter(parts._conv_stem, parts._bn0)
        self.blocks = [self._block(block) for block in parts._blocks]
        self._last = self._mix(parts._conv_head, parts._bn1, clamped=True)

    def pooled(self, images: UInt8[Tensor, "batch side side 3"]) -> list[Tensor]:
        """The means of the feature maps of every stage, `[batch, channels]` each; the last has
        1,280 channels."""
        return [_mean(found) for found in self.maps(images)]

    @torch.inference_mode()
    def maps(self, images: UInt8[Tensor, "batch side side 3"]) -> list[Maps]:
        """The feature maps of every stage, as `EfficientNetLite0.stages` returns them."""
        found, maps = self.start(images), []
        for place, block in enumerate(self.blocks):
            found = block(found)
            if place in STAGE_BLOCKS:
                maps.append(found)
        return [*maps, self._last(found)]

    @torch.inference_mode()
    def maps_before(
        self, images: UInt8[Tensor, "batch side side 3"], block: int
    ) -> Float[Tensor, "batch rows columns channels"]:
        """What this block takes, pixel by pixel."""
        found = self.start(images)
        for run in self.blocks[:block]:
            found = run(found)
        return found.permute(0, 2, 3, 1)

    def start(self, images: UInt8[Tensor, "batch side side 3"]) -> Maps:
        """What the first block takes."""
        pixels = normalize(images.to(self.device), self._scaled_for)
        return self._stem(pixels.contiguous(memory_format=torch.channels_last))

    def _block(self, block: Any) -> Step:
        widen = None
        if hasattr(block, "_expand_conv"):
            widen = self._mix(block._expand_conv, block._bn0, clamped=True)
        filter_each = self._filter(block._depthwise_conv, block._bn1)
        narrow = self._mix(block._project_conv, block._bn2, clamped=False)
        adds_input = block._adds_input

        def run(images: Maps) -> Maps:
            wide = images if widen is None else widen(images)
            found = narrow(filter_each(wide))
            return found.add_(images) if adds_input else found

        return run

    def _filter(self, convolution: Any, norm: nn.BatchNorm2d) -> Step:
        """A convolution over several pixels."""
        weight, bias = self._fold(convolution, norm)
        weight = weight.contiguous(memory_format=torch.channels_last)
        groups, [stride, _] = convolution.groups, convolution.stride

        def run(images: Maps) -> Maps:
            more = _count_skipped(images, stride)
            padding = weight.shape[2] // 2 + more
            found = F.conv2d(images, weight, bias, stride, padding, 1, groups)
            return found[:, :, more:, more:].clamp_(0, _CEILING)

        return run

    def _mix(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d, *, clamped: bool) -> Step:
        """A convolution of single pixels."""
        weight, bias = self._fold(convolution, norm)
        matrix = weight.flatten(1).T.contiguous()
        if self.form == "convolutions":
            weight = weight.contiguous(memory_format=torch.channels_last)

        def run(images: Maps) -> Maps:
            if self.form == "products":
                rows = images.permute(0, 2, 3, 1)
                found = torch.addmm(bias, rows.reshape(-1, rows.shape[3]), matrix)
                found = found.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)
            else:
                found = F.conv2d(images, weight, bias)
            return found.clamp_(0, _CEILING) if clamped else found

        return run

    def _fold(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        weight, bias = fold(convolution, norm)
        return weight.to(self.device), bias.to(self.device)


@torch.no_grad()
def fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of one convolution that does what both do in evaluation."""
    assert norm.running_mean is not None and norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        convolution.weight,
        convolution.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    return weight.detach().clone(), bias.detach().clone()


def choose_form(device: torch.device) -> Form:
    """The faster form on this machine, by timing both."""
    return _fastest_on_cpu() if device.type == "cpu" else "convolutions"


@lru_cache(maxsize=1)
def _fastest_on_cpu() -> Form:
    network = EfficientNetLite0(classes=1)
    images = torch.zeros(_TIMED_IMAGES, _TIMED_SIDE, _TIMED_SIDE, 3, dtype=torch.uint8)
    with fast_convolutions():
        seconds = {
            form: time_on_core(partial(FrozenLite0(network, form).maps, images)) for form in FORMS
        }
    return min(FORMS, key=lambda form: seconds[form])


def _mean(found: Maps) -> Float[Tensor, "batch channels"]:
    # Rows of pixels lie in memory as they are added up; PyTorch's mean over both sides is slower.
    return found.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


def _count_skipped(images: Maps, stride: int) -> int:
    """TensorFlow's "same" padding has one less before than after an even side with stride 2. With
    one more on every side instead, those are the outputs after a first one, and no image is copied
    to be padded. Images are square."""
    return 1 - images.shape[2] % 2 if stride == 2 else 0


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

    def forward(self, maps: PixelMaps) -> Float[Tensor, "batch classes"]:
        return self.classify(self.dropout(self.embed(maps)))

    def embed(self, maps: PixelMaps) -> Float[Tensor, "batch 1280"]:
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

    def forward(self, maps: PixelMaps) -> PixelMaps:
        wide = self.widen(maps).clamp(0, _CEILING)
        # The gradient of its input is a convolution too, far faster than PyTorch's own.
        filtered = DepthwiseConvolution.apply(wide.permute(0, 3, 1, 2), self.kernel, 1)
        filtered = filtered.permute(0, 2, 3, 1)
        found = self.narrow((filtered + self.filter_bias).clamp(0, _CEILING))
        return found + maps if self._adds_input else found


class _Mix(nn.Module):
    """A convolution of single pixels as a matrix product."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        weight, bias = fold(convolution, norm)
        self.weight, self.bias = nn.Parameter(weight.flatten(1)), nn.Parameter(bias)

    def forward(self, maps: PixelMaps) -> PixelMaps:
        return F.linear(maps, self.weight, self.bias)

    def write_into(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        scale = _scale(norm)[:, None]
        is_used = scale.abs() > torch.finfo(scale.dtype).tiny
        weight = torch.where(is_used, self.weight / scale, convolution.weight.flatten(1))
        convolution.weight.copy_(weight[:, :, None, None])
        norm.bias.copy_(self.bias + _shift(norm))


def _scale(norm: nn.BatchNorm2d) -> Tensor:
    assert norm.running_var is not None
    return norm.weight / torch.sqrt(norm.running_var + norm.eps)


def _shift(norm: nn.BatchNorm2d) -> Tensor:
    assert norm.running_mean is not None
    return norm.running_mean * _scale(norm)
