"""A small folder of samples that the tests of the datasets share."""

import shutil
from pathlib import Path

import pytest

from tests.samples import write_samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """105 samples in five shards, each of several record batches. Shared: do not modify."""
    return write_samples(tmp_path_factory.mktemp("samples") / "data", shards=5, rows=21)


@pytest.fixture
def folder(samples: Path, tmp_path: Path) -> Path:
    """A copy of the samples, to damage."""
    return Path(shutil.copytree(samples, tmp_path / "data"))
