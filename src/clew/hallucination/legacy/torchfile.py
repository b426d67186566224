"""Read legacy `.pt` files: a zip of one pickle and the bytes of its tensors.

Tensors are returned as NumPy arrays, graphs of torch_geometric as `Inert` objects that
hold their state; neither torch_geometric nor any code in the file is needed.
"""

import math
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from clew.errors import InputError
from clew.hallucination.legacy.stand_ins import Allowed, Inert, RefusedContentError, refuse_unless
from clew.hallucination.legacy.unpickle import PLAIN_NAMES, RestrictedUnpickler, explain_errors

_OLD_FORMAT_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_BFLOAT16 = "bfloat16"

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


def load_torch_file(path: Path) -> Any:
    """The data that `torch.save` put into a file; tensors as NumPy arrays, bfloat16 as float32.

    Raises UnsafePickleError if the file refers to anything but tensors, plain data and graphs,
    InputError if it cannot be read.
    """
    with explain_errors(path):
        _refuse_other_formats(path)
        with zipfile.ZipFile(path) as archive:
            return _TorchUnpickler(archive, path).load()


class _TorchUnpickler(RestrictedUnpickler):
    """Adds tensors and graphs to what a plain pickle may hold."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._root = _find_root(archive)
        order = f"{self._root}byteorder"
        big = order in archive.namelist() and archive.read(order).strip() == b"big"
        self._byte_order: Literal["<", ">"] = ">" if big else "<"
        self._storages: dict[str, _Storage] = {}
        pickled = archive.getinfo(f"{self._root}data.pkl")
        # torch never compresses; a compressed file may be meant to exhaust memory.
        refuse_unless(pickled.compress_type == zipfile.ZIP_STORED, "its pickle is compressed")
        super().__init__(BytesIO(archive.read(pickled)), path, _TORCH_NAMES)

    def persistent_load(self, pid: Any) -> Any:
        """The values of one storage, from its own entry of the zip."""
        well_formed = isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"
        if not well_formed or not isinstance(pid[1], _StorageName) or not isinstance(pid[2], str):
            raise RefusedContentError(f"it refers to something other than a tensor ({pid!r:.80})")
        _, kind, key, _, count = pid
        if key not in self._storages:
            self._storages[key] = _Storage(self._read_storage(kind.code, key, count))
        return self._storages[key]

    def _read_storage(self, code: str, key: str, count: int) -> np.ndarray:
        entry = self._archive.getinfo(f"{self._root}data/{key}")
        # torch never compresses; a compressed file may be meant to exhaust memory.
        refuse_unless(entry.compress_type == zipfile.ZIP_STORED, "its tensors are compressed")
        dtype = np.dtype("u2" if code == _BFLOAT16 else code).newbyteorder(self._byte_order)
        if entry.file_size != count * dtype.itemsize:
            raise ValueError(f"storage {key} has {entry.file_size:,} bytes for {count:,} values")
        values = np.frombuffer(self._archive.read(entry), dtype)
        values = values.astype(dtype.newbyteorder("="), copy=False)
        return _widen_bfloat16(values) if code == _BFLOAT16 else values


class _StorageName:
    """Stands in for `torch.HalfStorage` and similar: a name for a type of numbers."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        raise RefusedContentError("it tries to change a storage class")


class _Storage:
    """The numbers behind one or more tensors, flat.

    A separate class, so that no other array can pass for one: tensors are views whose bounds are
    checked against the storage's length.
    """

    __slots__ = ("values",)

    def __init__(self, values: Shaped[np.ndarray, " values"]) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        raise RefusedContentError("it tries to change a storage")


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, *_gradient_and_hooks: Any
) -> np.ndarray:
    """A view into a storage, rejected if it exceeds its bounds."""
    refuse_unless(isinstance(storage, _Storage), "a tensor has no storage")
    values = storage.values
    numbers = (offset, *shape, *strides)
    sane = all(isinstance(n, int) and n >= 0 for n in numbers) and len(shape) == len(strides)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=False))
    inside = math.prod(shape) == 0 or (last < len(values) and math.prod(shape) <= len(values))
    if not sane or not inside:
        raise ValueError(
            f"a tensor of shape {shape!r:.60}, strides {strides!r:.60} and offset {offset!r:.20} "
            f"exceeds its storage of {len(values):,} values"
        )
    if math.prod(shape) == 0:
        return np.zeros(shape, values.dtype)
    return np.lib.stride_tricks.as_strided(
        values[offset:], shape, [step * values.itemsize for step in strides], writeable=False
    )


def _widen_bfloat16(values: np.ndarray) -> np.ndarray:
    """Convert bfloat16, the upper half of a float32, to float32."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def _find_root(archive: zipfile.ZipFile) -> str:
    """torch.save names the folder in the zip after the file; there is exactly one."""
    found = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
    if len(found) != 1:
        raise ValueError("the zip has no data.pkl, so torch.save did not write it")
    return found[0].removesuffix("data.pkl")


def _refuse_other_formats(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_OLD_FORMAT_START))
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
