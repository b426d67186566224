"""Training images are augmented one by one, and each operation does what its name says."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from clew.base.errors import InputError
from clew.patterns.augment import AugmentConfig, Mixup, RandAugment
from clew.patterns.augment.operations import PARAMETERS, apply_changes, change_table, inverse_matrix


def picture(side: int = 48, seed: int = 0) -> torch.Tensor:
    """A smooth color image, `[1, side, side, 3]`."""
    small = np.random.default_rng(seed).integers(20, 220, (6, 6, 3), np.uint8)
    large = Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(large).copy())[None]


def changed(images: torch.Tensor, mirrored: float = 1.0, **values: float) -> torch.Tensor:
    row = torch.tensor([[values.get(name, 0.0) for name in PARAMETERS]])
    count = len(images)
    return apply_changes(images, row.expand(count, -1), torch.full((count,), mirrored))


def as_image(images: torch.Tensor) -> Image.Image:
    return Image.fromarray(images[0].numpy())


def distance(mine: torch.Tensor, theirs: Image.Image) -> float:
    return float((mine[0] - torch.from_numpy(np.asarray(theirs) / 255.0)).abs().mean())


def test_image_without_changes_stays_unchanged() -> None:
    assert torch.allclose(changed(picture()), picture() / 255, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "pillow"),
    [
        ({"brightness": 0.3}, lambda i: ImageEnhance.Brightness(i).enhance(np.exp(0.3))),
        ({"contrast": -0.3}, lambda i: ImageEnhance.Contrast(i).enhance(np.exp(-0.3))),
        ({"color": 0.4}, lambda i: ImageEnhance.Color(i).enhance(np.exp(0.4))),
        ({"sharpness": 0.5}, lambda i: ImageEnhance.Sharpness(i).enhance(np.exp(0.5))),
        ({"posterize": 3.0}, lambda i: ImageOps.posterize(i, 5)),
        ({"solarize": 0.5}, lambda i: ImageOps.solarize(i, 128)),
        ({"autocontrast": 1.0}, ImageOps.autocontrast),
        ({"equalize": 1.0}, ImageOps.equalize),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_colors_change_as_in_pillow(values, pillow) -> None:
    images = picture()
    plain = distance(images / 255, pillow(as_image(images)))
    assert distance(changed(images, **values), pillow(as_image(images))) < max(0.01, plain / 10)


def test_images_move_in_the_named_direction() -> None:
    images = torch.zeros(1, 40, 40, 3, dtype=torch.uint8)
    images[:, 20:30, 22:28] = 255

    def middle(moved: torch.Tensor) -> list[float]:
        weight, places = moved[0, :, :, 0] / moved[0, :, :, 0].sum(), torch.arange(40.0)
        return [float(weight.sum(1) @ places), float(weight.sum(0) @ places)]

    row, column = middle(changed(images))
    moved_row, moved_column = middle(changed(images, shift_x=0.1, shift_y=-0.1))
    assert moved_column == pytest.approx(column - 4, abs=0.1)
    assert moved_row == pytest.approx(row + 4, abs=0.1)
    assert middle(changed(images, mirrored=-1.0))[1] == pytest.approx(39 - column, abs=0.1)
    assert changed(images, zoom=0.3).sum() > 1.5 * changed(images).sum()


def test_every_image_draws_its_own_changes() -> None:
    images = picture().expand(32, -1, -1, -1)
    seen = RandAugment(AugmentConfig(flip=True))(images)
    apart = torch.cdist(seen.flatten(1), seen.flatten(1)) + 1e3 * torch.eye(32)
    assert apart.min() > 0.1
    assert seen.min() >= 0 and seen.max() <= 1


def test_same_seed_draws_the_same_changes() -> None:
    augment, images = RandAugment(AugmentConfig()), picture().expand(4, -1, -1, -1)
    torch.manual_seed(3)
    first = augment(images)
    torch.manual_seed(3)
    assert torch.equal(augment(images), first)
    assert not torch.equal(augment(images), first)


def test_no_image_is_mirrored_unless_requested() -> None:
    torch.manual_seed(0)
    assert set(RandAugment(AugmentConfig(flip=True)).draw(100)[1].tolist()) == {1.0, -1.0}
    assert set(RandAugment(AugmentConfig(flip=False)).draw(100)[1].tolist()) == {1.0}


def test_disabled_augmentation_changes_nothing() -> None:
    images = picture().expand(3, -1, -1, -1)
    assert torch.allclose(RandAugment(AugmentConfig.nothing())(images), images / 255, atol=1e-5)


def test_all_fourteen_operations_of_the_paper_are_drawn() -> None:
    table = change_table(9)
    assert len(table) == 28
    assert (table.abs().sum(1) == 0).sum() == 2  # one of them leaves the image alone


def test_crops_show_a_part_of_the_image_in_another_shape() -> None:
    torch.manual_seed(0)
    config = AugmentConfig(ops=0, crop=0.25)
    parameters, mirrored = RandAugment(config).draw(1000)
    seen = inverse_matrix(parameters, mirrored)
    width, height = seen[:, 0, 0], seen[:, 1, 1]
    assert 0.25 <= (width * height).min() < 0.3 and (width * height).max() > 0.95
    assert 0.74 < (width / height).min() < 0.8 and 1.25 < (width / height).max() < 1.34
    edges = seen[:, :, 2].abs() + torch.stack([width, height], dim=1)
    assert edges.max() <= 1 + 1e-5  # all of it lies inside the image
    assert seen[:, :, 2].mean(0).abs().max() < 0.05


def test_crop_is_that_of_pillow() -> None:
    images, (left, top, width, height) = picture(), (6, 12, 24, 36)
    box = (left, top, left + width, top + height)
    cropped = as_image(images).resize((48, 48), Image.Resampling.BILINEAR, box)
    values = {
        "zoom": -np.log(width * height / 48**2) / 2,
        "stretch": np.log(width / height),
        "shift_x": (left + width / 2) / 48 - 0.5,
        "shift_y": (top + height / 2) / 48 - 0.5,
    }
    assert distance(changed(images, **values), cropped) < 0.005


@pytest.mark.parametrize("crop", [0, 1.5])
def test_crop_of_nothing_or_more_than_the_image_is_refused(crop: float) -> None:
    with pytest.raises(InputError, match="greater than 0 and at most 1"):
        AugmentConfig(crop=crop)


@pytest.mark.parametrize("side", [8, 32, 100, 130])
def test_images_of_any_size_and_of_one_color_work(side: int) -> None:
    images = torch.full((5, side, side, 3), 200, dtype=torch.uint8)
    seen = RandAugment(AugmentConfig(ops=5, magnitude=30))(images)
    assert seen.shape == images.shape
    assert seen.isfinite().all()


def test_mixup_mixes_labels_like_the_images() -> None:
    torch.manual_seed(0)
    values = torch.eye(64)
    images = values.reshape(64, 8, 8, 1).expand(-1, -1, -1, 3).contiguous()
    mixed, aims = Mixup(1.0)(images, values)
    assert torch.allclose(aims.sum(1), torch.ones(64))
    assert torch.allclose(mixed[..., 0].reshape(64, 64), aims, atol=1e-6)
    own = aims.diagonal()
    assert (own >= 0.5).all()
    assert own.unique().numel() > 50  # one weight per image


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ops": -1}, "ops is -1"),
        ({"ops": len(PARAMETERS) + 1}, f"from 0 to {len(PARAMETERS)}"),
        ({"magnitude": 31}, "magnitude is 31"),
        ({"mixup": -0.1}, "mixup is -0.1"),
        ({"zoom": 1.0}, "zoom is 1.0"),
    ],
)
def test_invalid_settings_are_refused(given: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        AugmentConfig(**given)


def test_every_operation_may_be_drawn_once() -> None:
    assert AugmentConfig(ops=len(PARAMETERS)).ops == len(PARAMETERS)
