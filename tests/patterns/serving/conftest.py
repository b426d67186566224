"""A served classifier that knows three colors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.patterns.trained.model import PatternModel, load_classifier
from tests.patterns.identification.making import save_color_model
from tests.patterns.serving.serving import ServedPhotos, serving


@pytest.fixture(scope="session")
def color_model(tmp_path_factory: pytest.TempPathFactory) -> PatternModel:
    return load_classifier(save_color_model(tmp_path_factory.mktemp("model") / "colors"), "cpu")


@pytest.fixture
def served(color_model: PatternModel, tmp_path: Path) -> Iterator[ServedPhotos]:
    with serving(color_model, tmp_path) as opened:
        yield opened
