"""A folder with a page that classifies photos in the browser: the page of the served classifier,
the exported model, and onnxruntime for browsers. It needs a web server, but no clew."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from clew.base.errors import InputError
from clew.patterns.serving.app import PAGE
from clew.patterns.serving.runtime import fetch_runtime
from clew.patterns.serving.settings import PhotoServiceSettings
from clew.patterns.trained.exporting import INPUT, OUTPUT, TYPICALITY, ExportedModel
from clew.patterns.trained.model import PatternModel
from clew.patterns.trained.onnx import export_onnx
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
    settings = PhotoServiceSettings()
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
