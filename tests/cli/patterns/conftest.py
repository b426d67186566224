"""No command of these tests downloads the pretrained network."""

from pathlib import Path

import pytest

from tests.patterns.conftest import random_lite0, random_lite0_cache

__all__ = ["random_lite0", "random_lite0_cache"]


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail instead of using the package index."""

    def refuse(*_: object) -> Path:
        raise AssertionError("a test downloads the pretrained network")

    monkeypatch.setattr("clew.storage.wheels._download", refuse)
