"""EfficientNet-Lite0 without a download: its file of weights in a cache, with random values."""

import os
from pathlib import Path

import pytest

from tests.patterns.networks.making import write_random_lite0


@pytest.fixture(scope="session")
def random_lite0_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with random "pretrained" weights. Shared: do not modify."""
    cache = tmp_path_factory.mktemp("cache")
    write_random_lite0(cache)
    return cache


@pytest.fixture
def random_lite0(random_lite0_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pretrained weights of this test are random, and its images small."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(random_lite0_cache))
    monkeypatch.setattr("clew.patterns.networks._SIZES_OF_LITE0", (32, 32))
    return random_lite0_cache


@pytest.fixture(scope="session")
def imagenet_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the real weights, downloaded once per test run, which the processes of xdist
    share. For slow tests."""
    from clew.patterns.networks.lite0 import pretrained_lite0

    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    pretrained_lite0(root / "imagenet")
    return root / "imagenet"
