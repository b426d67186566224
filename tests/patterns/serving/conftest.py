"""A served classifier that knows three colors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clew.patterns.trained.model import PatternModel, load_classifier
from clew.patterns.trained.unknown import calibrate, fit_space
from tests.patterns.identification.making import COLORS, save_color_model
from tests.patterns.serving.serving import ServedPhotos, serving


@pytest.fixture(scope="session")
def color_model(tmp_path_factory: pytest.TempPathFactory) -> PatternModel:
    """It also knows that a photo of noise shows none of them."""
    folder = save_color_model(tmp_path_factory.mktemp("model") / "colors")
    model = load_classifier(folder, "cpu")
    images, labels = draw_images(model.image_size)
    features = model.outputs(images).features
    space = fit_space(features[::2], labels[::2])
    return replace(model, unknown=calibrate(space, features[1::2]))


def draw_images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Shades of the three colors: uint8 [60, size, size, 3], and their classes."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    colors = np.array(list(COLORS.values()))[labels] + generator.integers(-25, 25, (60, 3))
    noise = generator.integers(-20, 20, (60, size, size, 3))
    images = colors[:, None, None] + noise
    return images.clip(0, 255).astype(np.uint8), labels


@pytest.fixture
def served(color_model: PatternModel, tmp_path: Path) -> Iterator[ServedPhotos]:
    with serving(color_model, tmp_path) as opened:
        yield opened
