"""onnxruntime-web comes from npm, or it is said why not: npm here is a script of the test."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.serving import demo as runtime
from clew.patterns.serving.demo import fetch_runtime
from clew.patterns.workflow import export
from tests.patterns.identification.making import save_color_model

_NPM = """#!{python}
import pathlib, sys
folder = pathlib.Path.cwd()
{body}
"""
_GIVE = 'folder.joinpath("a.tgz").write_bytes(pathlib.Path({archive!r}).read_bytes())'
_FAIL = 'sys.exit("npm error code ENOTFOUND\\nnpm error A complete log of this run is elsewhere")'


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where npm is looked for, and nothing else."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin/npm"


def write_npm(npm: Path, body: str) -> None:
    npm.write_text(_NPM.format(python=sys.executable, body=body))
    npm.chmod(0o755)


def pack(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            about = tarfile.TarInfo(name)
            about.size = len(name)
            archive.addfile(about, io.BytesIO(name.encode()))
    return path


@pytest.mark.slow
def test_a_missing_npm_is_said_and_nothing_is_written(npm: Path, tmp_path: Path) -> None:
    del npm
    model = save_color_model(tmp_path / "colors")
    with pytest.raises(InputError, match=r"npm, which is not installed.*Nothing was written"):
        export(model=model, web=tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_an_unreachable_npm_is_said_with_its_reason(npm: Path) -> None:
    write_npm(npm, _FAIL)
    with pytest.raises(InputError, match=r"could not be fetched.*code ENOTFOUND"):
        fetch_runtime()


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_another_package_than_the_known_one_is_refused(
    npm: Path, tmp_path: Path, content: bytes | None
) -> None:
    archive = tmp_path / "given.tgz"
    if content is None:
        pack(archive, list(runtime._FILES.values()))
    else:
        archive.write_bytes(content)
    write_npm(npm, _GIVE.format(archive=str(archive)))
    with pytest.raises(InputError, match="damaged.*SHA-512"):
        fetch_runtime()


def test_only_the_files_that_a_page_needs_are_taken(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    names = [*runtime._FILES.values(), "package/dist/other.mjs", "../outside"]
    archive = pack(tmp_path / "given.tgz", names)
    write_npm(npm, _GIVE.format(archive=str(archive)))
    known = hashlib.sha512(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(runtime, "_SHA512", known)
    assert fetch_runtime() == {name: place.encode() for name, place in runtime._FILES.items()}


def test_a_page_and_a_file_are_not_asked_for_at_once(tmp_path: Path) -> None:
    model = save_color_model(tmp_path / "colors")
    with pytest.raises(InputError, match="only one of them"):
        export(model=model, web=tmp_path / "demo", out=tmp_path / "a.onnx")
