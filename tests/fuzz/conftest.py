from pathlib import Path

import pytest

from tests.fuzz.corpus import make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files of every kind. Shared: do not modify."""
    return make_corpus(tmp_path_factory.mktemp("corpus"))
