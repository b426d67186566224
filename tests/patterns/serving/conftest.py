"""A served classifier that knows three colors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.patterns.trained.model import PatternModel, load_classifier
from tests.patterns.identification.making import save_color_model, with_unknown
from tests.patterns.serving.serving import ServedPhotos, serving


@pytest.fixture(scope="session")
def color_model(tmp_path_factory: pytest.TempPathFactory) -> PatternModel:
    """It also knows that a photo of noise shows none of them."""
    folder = save_color_model(tmp_path_factory.mktemp("model") / "colors")
    return with_unknown(load_classifier(folder, "cpu"))


@pytest.fixture
def served(color_model: PatternModel, tmp_path: Path) -> Iterator[ServedPhotos]:
    with serving(color_model, tmp_path) as opened:
        yield opened
