"""The model trains on augmented images, and is evaluated on plain ones."""

import pytest
import torch

from clew.base.errors import InputError
from clew.engine import CategoricalLoss
from clew.patterns.augment import AugmentConfig
from clew.patterns.networks import NETWORKS, build_network
from clew.patterns.networks.classifier import PatternClassifier


def make(augment: AugmentConfig | None = None, size: int = 32) -> PatternClassifier:
    torch.manual_seed(0)
    network = build_network("tiny", classes=3, image_size=size)
    loss = CategoricalLoss(label_smoothing=0.1)
    return PatternClassifier(network, classes=3, loss=loss, augment=augment)


def batch(count: int = 6, size: int = 32) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=random)
    return {"image": images, "label": torch.arange(count) % 3}


def test_images_are_augmented_only_in_training() -> None:
    model, given = make(AugmentConfig()), batch()
    assert model.training_step(given).loss != model.training_step(given).loss
    model.eval()
    assert model.training_step(given).loss == model.training_step(given).loss


@pytest.mark.slow
def test_loss_falls_on_one_batch() -> None:
    model, given = make(), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.training_step(given).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_prediction_does_not_depend_on_the_batch() -> None:
    model, given = make().eval(), batch()
    together = model(given["image"])
    alone = torch.cat([model(given["image"][i : i + 1]) for i in range(6)])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 28, 32, 64, 96, 100, 128, 224])
def test_every_image_size_works(size: int) -> None:
    network = build_network("tiny", classes=3, image_size=size).eval()
    features = network.features(torch.zeros(2, 3, size, size))
    assert min(features.shape[2:]) >= 1
    assert network.head(features).shape == (2, 3)


@pytest.mark.slow
def test_standard_network_matches_the_original_specification() -> None:
    network = build_network("standard", classes=10, image_size=128)
    widths = [block.excite.out_features for block in network.blocks]
    assert widths == [64] * 3 + [128] * 3 + [256] * 3 + [512] * 3
    weights = network.blocks[0].first[0].weight
    assert 0.015 < weights.std() < 0.02
    assert weights.abs().max() <= 0.04  # truncated


def test_larger_presets_have_more_parameters() -> None:
    with torch.device("meta"):
        networks = [build_network(name, classes=10, image_size=32) for name in NETWORKS]
    sizes = [sum(weight.numel() for weight in network.parameters()) for network in networks]
    assert sizes == sorted(sizes)


def test_unknown_network_is_refused() -> None:
    with pytest.raises(InputError, match="small, standard, large, or timm:NAME"):
        build_network("resnet18", classes=3, image_size=32)


def test_networks_of_clew_have_no_pretrained_weights() -> None:
    with pytest.raises(InputError, match='"standard" has no pretrained weights: omit `pretr'):
        build_network("standard", classes=3, image_size=32, pretrained=True)


def test_timm_is_used_if_installed_and_named_if_missing() -> None:
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):
        with pytest.raises(InputError, match=r"pip install .clew\[timm\]"):
            build_network("timm:resnet18", classes=3, image_size=64)
        return
    images = torch.randn(2, 3, 64, 64)
    for name in ("timm:resnet18", "timm:vit_tiny_patch16_224"):
        network = build_network(name, classes=3, image_size=64).eval()
        assert torch.allclose(network.head(network.features(images)), network(images), atol=1e-5)
    with pytest.raises(InputError, match="timm has no network"):
        build_network("timm:resnet1899", classes=3, image_size=64)
