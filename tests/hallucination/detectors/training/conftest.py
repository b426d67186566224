"""One folder of samples per session, and three networks trained on it."""

from pathlib import Path

import pytest

from clew.hallucination.detectors.training.train import train_detectors
from tests.hallucination.detectors.training.making import small_run, write_learnable
from tests.stores import one_thread


@pytest.fixture(scope="session")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable(tmp_path_factory.mktemp("learnable") / "preprocessed_data")


@pytest.fixture(scope="session")
def trained(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run over all networks. Shared: do not modify."""
    out = tmp_path_factory.mktemp("trained") / "results"
    with one_thread():
        train_detectors(small_run(learnable, out))
    return out
