"""Heat lies where the object is, for any convolutional network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.patterns.networks.lite0 import SameConv2d
from clew.patterns.trained.model import PatternModel, check_maps, heat_maps, load_classifier
from tests.patterns.report.making import SIZE, make_run


class Brightness(nn.Module):
    """Its maps are the photo's brightness at a quarter of the size; "dark" is the opposite."""

    def __init__(self, kernel: int, *, same: bool = False) -> None:
        super().__init__()
        self.halve = nn.ModuleList(_blur(kernel, channels, same) for channels in (3, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        for halve in self.halve:
            images = halve(images)
        return images.relu()

    def head(self, features: Tensor) -> Tensor:
        bright = features.mean((2, 3))
        return torch.cat([bright, -bright], dim=1)


def _blur(kernel: int, channels: int, same: bool) -> nn.Conv2d:
    if same:
        blur: nn.Conv2d = SameConv2d(channels, 1, kernel, stride=2)
    else:
        blur = nn.Conv2d(channels, 1, kernel, stride=2, padding=(kernel - 1) // 2, bias=False)
    nn.init.constant_(blur.weight, 1 / kernel**2 / channels)
    return blur


def make_model(network: nn.Module) -> PatternModel:
    return PatternModel(
        folder=Path("model"),
        classes=("bright", "dark"),
        image_size=SIZE,
        network=network.eval(),
        temperature=1.0,
        device=torch.device("cpu"),
    )


def draw_spot(row: int, column: int, radius: int = 3) -> np.ndarray:
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    image[row - radius : row + radius + 1, column - radius : column + radius + 1] = 255
    return image


@pytest.mark.parametrize(
    "network",
    [Brightness(3), Brightness(2), Brightness(3, same=True)],
    ids=["strides", "patches", "same"],
)
@pytest.mark.parametrize("place", [(8, 8), (8, 24), (20, 13)])
def test_heat_lies_on_the_object(network: Brightness, place: tuple[int, int]) -> None:
    heat = heat_maps(make_model(network), draw_spot(*place)[None], np.array([0]))[0]
    assert heat.shape == (SIZE, SIZE) and heat.max() == 1 and heat.min() >= 0
    rows, columns = np.indices(heat.shape)
    middle = [(heat * places).sum() / heat.sum() for places in (rows, columns)]
    assert middle == pytest.approx(place, abs=1.0)


def test_regions_without_evidence_are_cold() -> None:
    model, spot = make_model(Brightness(3)), draw_spot(16, 16)
    bright, dark = heat_maps(model, np.stack([spot, spot]), np.array([0, 1]))
    assert bright.max() == 1 and not dark.any()


@pytest.mark.slow
def test_heat_maps_of_a_batch_equal_those_of_single_photos(tmp_path: Path) -> None:
    model = load_classifier(make_run(tmp_path / "out"), device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (19, SIZE, SIZE, 3), dtype=np.uint8)
    classes = np.arange(19) % 4
    together = heat_maps(model, images, classes)
    single = [heat_maps(model, images[n : n + 1], classes[n : n + 1])[0] for n in range(19)]
    np.testing.assert_allclose(together, np.stack(single), atol=1e-4)
    assert heat_maps(model, images[:0], classes[:0]).shape == (0, SIZE, SIZE)
    assert all(p.grad is None for p in model.network.parameters())


class Tokens(Brightness):
    def features(self, images: Tensor) -> Tensor:
        return super().features(images).flatten(2)


def test_network_without_maps_is_refused() -> None:
    model = replace(make_model(Tokens(3)), folder=Path("some/model"))
    with pytest.raises(
        InputError,
        match=r'"some/model" have shape \(1, 1, 64\), which is not a spatial feature map',
    ):
        check_maps(model)
