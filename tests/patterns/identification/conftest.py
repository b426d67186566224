from pathlib import Path

import pytest

from clew.patterns.trained.model import PatternModel, load_classifier
from tests.patterns.identification.making import save_colour_model
from tests.stores import one_thread


@pytest.fixture(scope="session")
def colour_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a training. Shared: look, do not touch."""
    with one_thread():
        return save_colour_model(tmp_path_factory.mktemp("colours") / "OUT")


@pytest.fixture(scope="session")
def colours(colour_folder: Path) -> PatternModel:
    return load_classifier(colour_folder, "cpu")
