"""A run records the versions of the libraries it depends on, as far as they are known."""

from importlib import metadata

import pytest

from clew.engine import checkpoint
from clew.engine.checkpoint import read_versions


def test_every_library_has_its_version() -> None:
    found = read_versions("safetensors")
    assert found["torch"] == metadata.version("torch")
    assert found["safetensors"] == metadata.version("safetensors")


def test_library_without_metadata_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "lightning-fabric":
            raise metadata.PackageNotFoundError(name)
        return metadata.version(name)

    monkeypatch.setattr(checkpoint, "version", version)
    found = read_versions()
    assert found["lightning-fabric"] == "unknown"
    assert found["torch"] == metadata.version("torch")
