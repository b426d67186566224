"""Photos of three colors, and a model trained on them."""

from pathlib import Path

import pytest

from clew.patterns.training import train_patterns
from tests.patterns.training.making import COLORS, small_run, write_photos
from tests.stores import one_thread


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: do not modify."""
    folder = tmp_path_factory.mktemp("colors") / "mis fotos ñ"
    return write_photos(folder, dict.fromkeys(COLORS, 14))


@pytest.fixture(scope="session")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run. Shared: do not modify."""
    out = tmp_path_factory.mktemp("trained") / "out"
    with one_thread():
        train_patterns(small_run(photos, out, epochs=8))
    return out
