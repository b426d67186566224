"""EfficientNet-Lite0: inverted residual blocks with depthwise convolutions (arXiv 1801.04381,
1905.11946), with ReLU6 and without squeeze-and-excitation."""

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.patterns.networks.scaling import InputScaling

FEATURES = 1280
# The blocks after which `stages` reports: the last ones at strides 4, 8, 16 and 32.
STAGE_BLOCKS = (2, 4, 10, 15)
STAGE_CHANNELS = (24, 40, 112, 320, FEATURES)
_STEM, _DROPOUT = 32, 0.2

Images = Float[Tensor, "batch channels rows columns"]


class _Stage(NamedTuple):
    """Blocks of the same width; the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expand: int
    width: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


class EfficientNetLite0(nn.Module):
    """Takes images `[batch, 3, height, width]` scaled to [-1, 1]; returns logits `[batch,
    classes]`. Its weights have the names of the package efficientnet_lite_pytorch, so that its
    state dicts load."""

    head_name = "_fc"
    scaling = InputScaling(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    def __init__(self, classes: int) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, _STEM, 3, stride=2)
        self._bn0 = _norm(_STEM)
        self._blocks = nn.ModuleList(_blocks())
        self._conv_head = nn.Conv2d(_STAGES[-1].width, FEATURES, 1, bias=False)
        self._bn1 = _norm(FEATURES)
        self._dropout = nn.Dropout(_DROPOUT)
        self._fc = nn.Linear(FEATURES, classes)
        _initialize(self)

    def forward(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(images))

    def features(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 1280 rows columns"]:
        """The features of the last convolution, per position."""
        return self.stages(images)[-1]

    def stages(self, images: Float[Tensor, "batch 3 height width"]) -> list[Images]:
        """The feature maps after each of STAGE_BLOCKS, and last the one of `features`; their
        channels are STAGE_CHANNELS."""
        found, maps = self.stem(images), []
        for place, block in enumerate(self._blocks):
            found = block(found)
            if place in STAGE_BLOCKS:
                maps.append(found)
        return [*maps, self.last(found)]

    def stem(self, images: Float[Tensor, "batch 3 height width"]) -> Images:
        """What the first block takes."""
        return F.relu6(self._bn0(self._conv_stem(images)), inplace=True)

    def last(self, found: Images) -> Float[Tensor, "batch 1280 rows columns"]:
        """The features, from what the last block returns."""
        return F.relu6(self._bn1(self._conv_head(found)), inplace=True)

    def head(
        self, features: Float[Tensor, "batch 1280 rows columns"]
    ) -> Float[Tensor, "batch classes"]:
        return self._fc(self._dropout(features.mean(dim=(2, 3))))


class MBConv(nn.Module):
    """Widens the channels, filters each on its own, and narrows them again; the sum with its input
    where both have the same shape."""

    def __init__(self, width_in: int, width: int, *, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = width_in * expand
        self._adds_input = stride == 1 and width_in == width
        self._expands = expand != 1
        if self._expands:
            self._expand_conv = nn.Conv2d(width_in, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride=stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = nn.Conv2d(wide, width, 1, bias=False)
        self._bn2 = _norm(width)

    def forward(self, images: Images) -> Images:
        found = images
        if self._expands:
            found = F.relu6(self._bn0(self._expand_conv(found)), inplace=True)
        found = F.relu6(self._bn1(self._depthwise_conv(found)), inplace=True)
        found = self._bn2(self._project_conv(found))
        return found + images if self._adds_input else found


class SameConv2d(nn.Conv2d):
    """A convolution without bias with TensorFlow's "same" padding: with stride 2 over an even side,
    it has one row fewer before the image than after it."""

    def __init__(
        self, width_in: int, width: int, kernel: int, *, stride: int, groups: int = 1
    ) -> None:
        super().__init__(
            width_in, width, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )

    def forward(self, images: Images) -> Images:
        if self.stride == (1, 1):
            return super().forward(images)
        # Padded by one more on every side, the outputs are those wanted, after a first one. Leaving
        # that out copies a quarter of what padding the image by itself would.
        more = [1 - side % 2 for side in images.shape[2:]]
        padding = [self.padding[0] + one for one in more]  # type: ignore[operator]
        found = F.conv2d(images, self.weight, None, self.stride, padding, 1, self.groups)
        return found[:, :, more[0] :, more[1] :]


def _blocks() -> list[MBConv]:
    blocks, width_in = [], _STEM
    for stage in _STAGES:
        for place in range(stage.blocks):
            stride = 1 if place else stage.stride
            blocks.append(
                MBConv(
                    width_in, stage.width, kernel=stage.kernel, stride=stride, expand=stage.expand
                )
            )
            width_in = stage.width
    return blocks


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


def _initialize(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight[:, 0].numel() / module.groups
            std = math.sqrt(2 / fan_out)
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            nn.init.zeros_(module.bias)
