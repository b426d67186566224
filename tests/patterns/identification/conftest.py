from pathlib import Path

import pytest

from clew.patterns.trained.model import PatternModel, load_classifier
from tests.patterns.identification.making import save_color_model
from tests.stores import one_thread


@pytest.fixture(scope="session")
def color_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run. Shared: do not modify."""
    with one_thread():
        return save_color_model(tmp_path_factory.mktemp("colors") / "OUT")


@pytest.fixture(scope="session")
def colors(color_folder: Path) -> PatternModel:
    return load_classifier(color_folder, "cpu")
