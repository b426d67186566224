"""Reads a GGUF file once. To load one, transformers opens it three times, and the library `gguf`
parses the whole vocabulary each time; it also lists the names of all tensors per module."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np


class _ArrayReader(gguf.GGUFReader):
    """A vocabulary takes half a million slices, and a slice of a `numpy.memmap` costs several
    times one of an array."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._data = mapped.view(np.ndarray)


@contextlib.contextmanager
def read_gguf_once() -> Iterator[None]:
    """Within it, transformers opens each GGUF file and lists the tensors' names only once."""
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    module: Any = gguf
    module.GGUFReader = functools.cache(_ArrayReader)
    module.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        module.GGUFReader, module.get_tensor_name_map = reader, names
