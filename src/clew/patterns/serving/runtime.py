"""onnxruntime for browsers, from npm: one pinned version, checked against its known hash."""

import hashlib
import logging
import os
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

from clew.base.errors import InputError, without_settings

logger = logging.getLogger(__name__)

PACKAGE = "onnxruntime-web@1.30.0"
_SHA512 = (
    "ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca"
    "590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61"
)
# The files that a page needs, by their place in the package.
_FILES = {
    "ort.wasm.bundle.min.mjs": "package/dist/ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}
_SECONDS = 600
_NPM = {
    "loglevel": "error",
    "ignore_scripts": "true",
    "prefer_offline": "true",
    "fetch_retries": "1",
}
_OTHERWISE = "Nothing was written. Without `web`, the model is exported as one ONNX file."


def fetch_runtime() -> dict[str, bytes]:
    """The files of onnxruntime-web by their names, about 14 MB; npm keeps the package in its own
    cache. Raises InputError if npm is missing, cannot reach the package, or gives another one."""
    logger.info("fetching %s with npm (33 MB, once)", PACKAGE)
    with tempfile.TemporaryDirectory(prefix="clew-npm-") as scratch:
        archive = _pack(Path(scratch))
        found = hashlib.sha512(archive.read_bytes()).hexdigest()
        if found != _SHA512:
            raise _damaged(f"it has SHA-512 {found[:16]}..., not {_SHA512[:16]}...")
        return _extract(archive)


def _pack(scratch: Path) -> Path:
    settings = {f"npm_config_{name}": value for name, value in _NPM.items()}
    try:
        done = subprocess.run(
            ["npm", "pack", PACKAGE],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            cwd=scratch,
            env={**os.environ, **settings},
        )
    except FileNotFoundError:
        raise InputError(
            f"the page for browsers requires npm, which is not installed: it fetches {PACKAGE}. "
            f"Install Node.js, which includes npm. {_OTHERWISE}"
        ) from None
    except subprocess.TimeoutExpired:
        raise _unreachable(f"it did not end within {_SECONDS} s") from None
    found = list(scratch.glob("*.tgz"))
    if done.returncode or not found:
        raise _unreachable(_reason(done.stderr) or f"exit code {done.returncode}")
    return found[0]


def _reason(said: str) -> str:
    """The first line that npm gives as an error: its code, such as ECONNREFUSED."""
    lines = [line.removeprefix("npm error").strip() for line in said.splitlines()]
    return without_settings(next(filter(None, lines), ""))[:200]


def _extract(archive: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(archive) as opened:
            for name, place in _FILES.items():
                file = opened.extractfile(place)
                if file is None:
                    raise _damaged(f"it contains no {place}")
                contents[name] = file.read()
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise _damaged(str(error)) from None
    return contents


def _unreachable(reason: str) -> InputError:
    return InputError(
        f'{PACKAGE}, which runs the model in a browser, could not be fetched: "npm pack {PACKAGE}" '
        f"failed ({reason}). Check the connection to your npm registry. {_OTHERWISE}"
    )


def _damaged(reason: str) -> InputError:
    return InputError(
        f"the package {PACKAGE} that npm gave is damaged ({reason}). Run npm cache verify, then "
        f"run the same command again. {_OTHERWISE}"
    )
