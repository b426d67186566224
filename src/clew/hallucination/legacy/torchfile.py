"""Read legacy `.pt` files: a zip of one pickle and the bytes of its tensors.

Tensors are returned as NumPy arrays, graphs of torch_geometric as `Inert` objects that
hold their state; neither torch_geometric nor any code in the file is needed.
"""

import io
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Shaped

from clew.base.errors import InputError
from clew.base.texts import shortened
from clew.hallucination.legacy.budget import Budget, choose_limit
from clew.hallucination.legacy.opcodes import PlainUnpickler
from clew.hallucination.legacy.stand_ins import (
    Allowed,
    Inert,
    RefusedContentError,
    is_shape,
    refuse_unless,
)
from clew.hallucination.legacy.unpickle import PLAIN_NAMES, explain_errors
from clew.storage.reading import open_regular

_OLD_FORMAT_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_BFLOAT16 = "bfloat16"
_MAX_NAME = 100
# Python's objects take about this many times the bytes of a zip's directory.
_DIRECTORY_TIMES = 16

_STORAGE_TYPES = {
    "HalfStorage": "f2",
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}

_GRAPH_CLASSES = {
    "torch_geometric.data.data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "torch_geometric.data.storage": (
        "BaseStorage",
        "NodeStorage",
        "EdgeStorage",
        "GlobalStorage",
    ),
    "torch_geometric.data.feature_store": ("TensorAttr",),
    "torch_geometric.data.graph_store": ("EdgeAttr", "EdgeLayout"),
}


def load_torch_file(path: Path, *, max_memory: int | str | None = None) -> Any:
    """The data that `torch.save` put into a file; tensors as NumPy arrays, bfloat16 as float32.

    Raises UnsafePickleError if the file refers to anything but tensors, plain data and graphs,
    InputError if it cannot be read or takes more than `max_memory` (see `load_pickle`).
    """
    with explain_errors(path):
        return read_torch(path, Budget(path, choose_limit(path, max_memory)))


def read_torch(path: Path, budget: Budget) -> Any:
    """As `load_torch_file`; call it inside `explain_errors`."""
    with open_regular(path) as file:
        _refuse_other_formats(file, path)
        bounded = _BoundedFile(file, budget)
        with zipfile.ZipFile(bounded) as archive:
            bounded.is_open = True
            return _TorchUnpickler(_Entries(archive, budget), budget).load()


class _BoundedFile(io.RawIOBase):
    """A file that never reserves memory for more bytes than it has. While the zip's directory is
    read, every byte is counted as often as the directory takes in memory."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._file, self._budget = file, budget
        self._size = os.fstat(file.fileno()).st_size
        self.is_open = False

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self._size - self.tell())
        count = left if count is None or count < 0 else min(count, left)
        self._budget.check(count)
        if not self.is_open:
            self._budget.take(count * _DIRECTORY_TIMES)
        return self._file.read(count)


class _Entries:
    """The entries of a zip that `torch.save` wrote, by their names in its one folder."""

    def __init__(self, archive: zipfile.ZipFile, budget: Budget) -> None:
        self._archive, self._budget = archive, budget
        self._names = set(archive.namelist())
        self._root = _find_root(self._names)

    def __contains__(self, name: str) -> bool:
        return self._root + name in self._names

    def size(self, name: str) -> int:
        return self._archive.getinfo(self._root + name).file_size

    def read(self, name: str) -> bytes:
        entry = self._archive.getinfo(self._root + name)
        # torch never compresses; a compressed file may be meant to exhaust memory.
        stored = entry.compress_type == zipfile.ZIP_STORED
        refuse_unless(stored, f"its entry {shortened(name)} is compressed")
        self._budget.take(entry.file_size)
        return self._archive.read(entry)


class _TorchUnpickler(PlainUnpickler):
    """Adds tensors and graphs to what a plain pickle may hold."""

    def __init__(self, entries: _Entries, budget: Budget) -> None:
        super().__init__(io.BytesIO(entries.read("data.pkl")), _TORCH_NAMES, budget)
        self._entries = entries
        big = "byteorder" in entries and entries.read("byteorder").strip() == b"big"
        self._byte_order: Literal["<", ">"] = ">" if big else "<"
        self._storages: dict[str, _Storage] = {}

    def persistent_load(self, pid: Any) -> Any:
        """The values of one storage, from its own entry of the zip."""
        if not _names_storage(pid):
            raise RefusedContentError(
                f"it refers to something other than a tensor ({shortened(pid)})"
            )
        _, kind, key, _, count = pid
        if key not in self._storages:
            self._storages[key] = _Storage(self._read_storage(kind.code, key, count))
        return self._storages[key]

    def _read_storage(self, code: str, key: str, count: int) -> np.ndarray:
        dtype = np.dtype("u2" if code == _BFLOAT16 else code).newbyteorder(self._byte_order)
        size = self._entries.size(f"data/{key}")
        if size != count * dtype.itemsize:
            raise ValueError(f"storage {key} has {size:,} bytes for {shortened(count)} values")
        values = np.frombuffer(self._entries.read(f"data/{key}"), dtype)
        if not dtype.isnative:
            self._budget.take(size)
            values = values.astype(dtype.newbyteorder("="))
        if code == _BFLOAT16:
            self._budget.take(4 * size)
            return _widen_bfloat16(values)
        return values


def _names_storage(pid: Any) -> bool:
    """Whether it is ("storage", type, key, device, number of values)."""
    if not isinstance(pid, tuple) or len(pid) != 5:
        return False
    tag, kind, key, _, count = pid
    texts = isinstance(tag, str) and isinstance(key, str) and isinstance(kind, _StorageName)
    return texts and tag == "storage" and len(key) <= _MAX_NAME and isinstance(count, int)


class _StorageName:
    """Stands in for `torch.HalfStorage` and similar: a name for a type of numbers."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __repr__(self) -> str:
        return "a type of storage"


class _Storage:
    """The numbers behind one or more tensors, flat.

    A separate class, so that no other array can pass for one: tensors are views whose bounds are
    checked against the storage's length.
    """

    __slots__ = ("values",)

    def __init__(self, values: Shaped[np.ndarray, " values"]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return "a storage"


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, *_gradient_and_hooks: Any
) -> np.ndarray:
    """A view into a storage, rejected if it exceeds its bounds."""
    refuse_unless(isinstance(storage, _Storage), "a tensor has no storage")
    values = storage.values
    sane = isinstance(offset, int) and offset >= 0 and is_shape(shape)
    if not sane or not _are_strides(strides) or not _is_inside(offset, shape, strides, len(values)):
        raise ValueError(
            f"a tensor of shape {shortened(shape)}, strides {shortened(strides)} and offset "
            f"{shortened(offset)} exceeds its storage of {len(values):,} values"
        )
    if 0 in shape:
        return np.zeros(shape, values.dtype)
    return np.lib.stride_tricks.as_strided(
        values[offset:], shape, [step * values.itemsize for step in strides], writeable=False
    )


def _are_strides(strides: Any) -> bool:
    """Whether they are steps forward. A step of 0 repeats values: `expand` writes it."""
    return isinstance(strides, tuple | list) and all(
        isinstance(step, int) and step >= 0 for step in strides
    )


def _is_inside(offset: int, shape: Any, strides: Any, length: int) -> bool:
    if len(shape) != len(strides):
        return False
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return 0 in shape or (last < length and math.prod(shape) <= length)


def _widen_bfloat16(values: np.ndarray) -> np.ndarray:
    """Convert bfloat16, the upper half of a float32, to float32."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def _find_root(names: Iterable[str]) -> str:
    """torch.save names the folder in the zip after the file; there is exactly one."""
    found = [name for name in names if name.split("/", 2)[1:] == ["data.pkl"]]
    if len(found) != 1:
        raise ValueError("the zip has no data.pkl, so torch.save did not write it")
    return found[0].removesuffix("data.pkl")


def _refuse_other_formats(file: BinaryIO, path: Path) -> None:
    start = file.read(len(_OLD_FORMAT_START))
    file.seek(0)
    if start == _OLD_FORMAT_START:
        raise InputError(
            f'"{path}" is in the file format used before PyTorch 1.6, which clew does not read: '
            "load it with torch.load(..., weights_only=True) and save it again with torch.save."
        )
    if not start.startswith(b"PK"):
        raise InputError(
            f'"{path}" was not written by torch.save (it starts with {start[:4]!r}): check that it '
            "is the right file and was copied completely."
        )


_TORCH_NAMES: Mapping[tuple[str, str], Any] = {
    **PLAIN_NAMES,
    ("torch._utils", "_rebuild_tensor_v2"): Allowed(_rebuild_tensor),
    **{("torch", name): _StorageName(code) for name, code in _STORAGE_TYPES.items()},
    **{(module, name): Inert for module, names in _GRAPH_CLASSES.items() for name in names},
}
