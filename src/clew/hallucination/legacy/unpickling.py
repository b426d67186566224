"""Read pickles and torch files of plain data. Every name in them is looked up in a list, never
imported: it can only create a number, a container or an array of numbers. What a hostile file takes
is not counted here: `reading.py` calls this in a process with limited memory and time."""

import gzip
import io
import math
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import EFBIG, ENOSPC
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clew.base.errors import InputError, UnsafePickleError
from clew.base.texts import bytes_text, for_terminal, shortened

_GZIP_MAGIC = b"\x1f\x8b"
_OLD_TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MAX_DIMENSIONS, _LONGEST_DIMENSION, _LONGEST_EMPTY_DIMENSION = 32, 1 << 48, 1 << 16
_PLAIN_DTYPE = re.compile(r"[<>=|]?(\?|b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,5})")
_BFLOAT16 = "bfloat16"
# The memory that the entries of a zip's directory take, per byte of it: 11 to 14.
_DIRECTORY_TIMES = 16


class RefusedContentError(UnsafePickleError):
    """The file refers to something that plain data does not need."""


def read_pickle(file: BinaryIO) -> Any:
    """The plain data in a pickle; whether it is compressed is seen from its first bytes."""
    compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    opened: Any = gzip.GzipFile(fileobj=file) if compressed else file
    value = PlainUnpickler(opened, PLAIN_NAMES).load()
    # Reading to the end also checks gzip's length and checksum.
    if opened.read(1):
        raise InputError(
            "continues with more bytes after its first pickle: clew reads files with one list of "
            "records. Split the file with the tool that wrote it."
        )
    return value


class _ArchiveFile(io.BufferedReader):
    """Refuses to read a directory that would fill the memory with its entries: Python can neither
    go on nor fail (it retries forever) where an exception passes `zipfile` without a byte left."""

    most_bytes: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most_bytes is not None and size is not None and size > self.most_bytes:
            raise MemoryError
        return super().read(size)


def read_torch(file: BinaryIO, max_memory: int | None = None) -> Any:
    """The data in a zip that `torch.save` wrote: tensors as NumPy arrays, bfloat16 as float32, and
    graphs of torch_geometric as `Inert`. torch itself would take two seconds to import, and reads
    hostile archives in C++."""
    start = file.read(len(_OLD_TORCH_START))
    file.seek(0)
    if start == _OLD_TORCH_START:
        raise InputError(
            "is in the file format used before PyTorch 1.6, which clew does not read: load it with "
            "torch.load(..., weights_only=True) and save it again with torch.save."
        )
    if not start.startswith(b"PK"):
        raise InputError(
            f"was not written by torch.save (it starts with {start[:4]!r}): check that it is the "
            "right file and was copied completely."
        )
    with _ArchiveFile(io.FileIO(os.dup(file.fileno()))) as content:
        content.most_bytes = max_memory and max_memory // _DIRECTORY_TIMES
        archive = zipfile.ZipFile(content)
        content.most_bytes = None
        return _TorchUnpickler(archive).load()


@contextmanager
def explain_errors(path: Path | str, limit: int | None = None) -> Iterator[None]:
    """Turn what damaged or malicious bytes raise into one sentence about the file; `limit` is the
    memory that it may take."""
    try:
        yield
    except RefusedContentError as error:
        raise UnsafePickleError(
            f'"{path}" was rejected: {error}. Nothing in it was executed. Ask its author for a '
            "file of plain lists, dicts and NumPy arrays."
        ) from None
    except InputError as error:
        raise InputError(f'"{path}" {error}') from None
    except FileNotFoundError:
        raise InputError(f'there is no file "{path}". Check the path.') from None
    except PermissionError:
        raise InputError(f'"{path}" cannot be read: check its permissions.') from None
    except Exception as error:  # damaged bytes raise anything
        raise InputError(_explain(error, path, limit)) from None


def _explain(error: Exception, path: Path | str, limit: int | None) -> str:
    code = getattr(error, "errno", None)
    if limit is not None and (isinstance(error, MemoryError) or code == EFBIG):
        return (
            f'"{path}" takes more than {bytes_text(limit)} of memory: it is damaged, or made to '
            "exhaust memory. If you trust its author, give a larger `max_memory`."
        )
    if isinstance(error, MemoryError):
        return explain_no_memory(path)
    if code == ENOSPC:
        return (
            f'"{path}" cannot be read: the disk of temporary files is full. Free some space, or '
            "set the environment variable TMPDIR to a folder on another disk."
        )
    lines = str(error).splitlines() or [type(error).__name__]
    return (
        f'"{path}" is damaged or truncated ({for_terminal(lines[0][:200])}): copy it again from '
        "its source, or create it again."
    )


def explain_no_memory(path: Path | str) -> str:
    return (
        f'"{path}" requires more memory than is available: it is damaged or too large for this '
        "machine. Convert it on a machine with more memory."
    )


class PlainUnpickler(pickle.Unpickler):
    """Knows only the globals in `names`."""

    def __init__(self, file: Any, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file)
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._names:
            raise RefusedContentError(
                f"it refers to {shortened(f'{module}.{name}')}, which is not plain data and could "
                "run code"
            )
        return self._names[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedContentError(f"it refers to something outside the file ({shortened(pid)})")


class _TorchUnpickler(PlainUnpickler):
    """Adds tensors and graphs to what a plain pickle may hold."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        # torch.save names the folder in the zip after the file; there is exactly one.
        found = [name for name in archive.namelist() if name.split("/", 2)[1:] == ["data.pkl"]]
        if len(found) != 1:
            raise ValueError("the zip has no data.pkl, so torch.save did not write it")
        super().__init__(archive.open(found[0]), _TORCH_NAMES)
        self._archive, self._root = archive, found[0].removesuffix("data.pkl")
        order = f"{self._root}byteorder"
        big = order in archive.namelist() and archive.read(order).strip() == b"big"
        self._byte_order: Any = ">" if big else "<"
        self._storages: dict[str, _Storage] = {}

    def persistent_load(self, pid: Any) -> Any:
        """The values of a storage, ("storage", type, key, device, number of values), from its own
        entry of the zip."""
        storage = isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[1], _StorageType)
        if not storage or not isinstance(pid[2], str):
            raise RefusedContentError(
                f"it refers to something other than a tensor ({shortened(pid)})"
            )
        _, kind, key, _, _ = pid
        if key not in self._storages:
            self._storages[key] = _Storage(self._read_storage(kind.code, key))
        return self._storages[key]

    def _read_storage(self, code: str, key: str) -> np.ndarray:
        dtype = np.dtype("u2" if code == _BFLOAT16 else code).newbyteorder(self._byte_order)
        values = np.frombuffer(self._archive.read(f"{self._root}data/{key}"), dtype)
        values = values.astype(dtype.newbyteorder("="), copy=False)
        if code == _BFLOAT16:  # the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


class _Fixed:
    """What a pickle gets, but cannot change."""

    __slots__ = ()

    def __setstate__(self, _state: Any) -> None:
        raise RefusedContentError("it tries to change a function")


class _Function(_Fixed):
    """A function that a pickle may call, and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class _StorageType(_Fixed):
    """Stands in for `torch.HalfStorage` and similar: a name for a type of numbers."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code


class _Storage(_Fixed):
    """The numbers behind one or more tensors, flat. A class of its own, so that no other array can
    pass for one: the bounds of tensors are checked against its length."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class Inert:
    """Stands in for a class: it can be created and given a state, which it holds, and no more."""

    __slots__ = ("state",)

    state: Any

    def __new__(cls, *_arguments: Any) -> "Inert":
        self = super().__new__(cls)
        self.state = None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


# NumPy's own `__setstate__` of dtypes and arrays trusts its input: with forged flags, bytes of the
# file become pointers. The two classes below check all parts.
class _Dtype:
    """What `numpy.dtype("f2", False, True)` returns: the dtype's code, and later its byte order."""

    __slots__ = ("plain",)

    def __init__(self, code: Any, *_align_and_copy: Any) -> None:
        if not isinstance(code, str) or _PLAIN_DTYPE.fullmatch(code) is None:
            raise RefusedContentError(
                f"it contains a NumPy array of type {shortened(code)}, not of plain numbers"
            )
        self.plain = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        """(version, byte order, subtype, names, fields, ...): only the byte order may be set."""
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
            raise RefusedContentError("it contains a NumPy array of a structured type")
        if order in "<>":
            self.plain = self.plain.newbyteorder(order)


class _Array(np.ndarray):
    """An array that may be empty until its state arrives, as pickle does it. A pickle never gets
    this class, only instances, and no array with NumPy's own `__setstate__`."""

    def __setstate__(self, state: Any) -> None:
        if self.shape != (0,):
            raise RefusedContentError("it fills the same NumPy array twice")
        _, shape, dtype, fortran, content = state
        plain = _check_array(shape, dtype, content)
        super().__setstate__((1, tuple(shape), plain, bool(fortran), bytes(content)))  # type: ignore[arg-type]


def _make_ndarray(*_arguments: Any) -> Any:
    raise RefusedContentError("it creates a NumPy array by hand")


_NDARRAY = _Function(_make_ndarray)


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> np.ndarray:
    if kind is not _NDARRAY:
        raise RefusedContentError("it contains a subclass of NumPy's array")
    return np.zeros(0, np.uint8).view(_Array)


def _frombuffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
    """As in protocol 5: all bytes at once; `axes` preserves unusual memory layouts."""
    plain = _check_array(shape, dtype, content)
    # A copy: a bytearray could still grow, and move.
    array = np.ndarray(tuple(shape), plain, bytes(content), order="F" if order == "F" else "C")
    return (array if axes is None else array.transpose(axes)).view(_Array)


def _scalar(dtype: Any, content: Any) -> Any:
    return np.ndarray((), _check_array((), dtype, content), bytes(content))[()]


def _check_array(shape: Any, dtype: Any, content: Any) -> np.dtype:
    """The array's dtype, if it has as many bytes as its shape says. An array without values takes
    no bytes in a file, so its other dimensions must be plausible too."""
    if not isinstance(content, bytes | bytearray) or not isinstance(dtype, _Dtype):
        raise RefusedContentError("a NumPy array contains objects instead of bytes")
    plausible = isinstance(shape, tuple | list) and len(shape) <= _MAX_DIMENSIONS
    plausible = plausible and all(
        isinstance(n, int) and 0 <= n <= _LONGEST_DIMENSION for n in shape
    )
    plausible = plausible and (0 not in shape or max(shape) <= _LONGEST_EMPTY_DIMENSION)
    if not plausible or math.prod(shape) * dtype.plain.itemsize != len(content):
        raise ValueError(f"a NumPy array of shape {shortened(shape)} has {len(content):,} bytes")
    return dtype.plain


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, *_gradient_and_hooks: Any
) -> np.ndarray:
    """A view into a storage. Its bounds are checked here: NumPy's own check can overflow."""
    if not isinstance(storage, _Storage):
        raise RefusedContentError("a tensor has no storage")
    values = storage.values
    whole = all(type(n) is int and n >= 0 for n in (offset, *shape, *strides))
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if not whole or (0 not in shape and last >= len(values)) or math.prod(shape) > len(values):
        raise ValueError(
            f"a tensor of shape {shortened(shape)}, strides {shortened(strides)} and offset "
            f"{shortened(offset)} exceeds its storage of {len(values):,} values"
        )
    if 0 in shape:
        return np.zeros(shape, values.dtype).view(_Array)
    steps = [step * values.itemsize for step in strides]
    view = np.lib.stride_tricks.as_strided(values[offset:], shape, steps, writeable=False)
    return view.view(_Array)


def _encode(text: Any, encoding: Any) -> bytes:
    """How pickles of protocol 2 and older spell bytes; other codecs decompress or transform."""
    if encoding not in ("latin1", "latin-1"):
        raise RefusedContentError(f"it encodes text with {shortened(encoding)}")
    return text.encode("latin1")


PLAIN_NAMES: Mapping[tuple[str, str], Any] = {
    # Protocols 0 to 2 use the module's Python 2 name.
    **{
        (module, kind.__name__): kind
        for module in ("__builtin__", "builtins")
        for kind in (list, dict, tuple, set, frozenset, complex, bytes, bytearray)
    },
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): _Function(_encode),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Function(_Dtype),
    # NumPy 2 renamed `core` to `_core`; there are files of both versions.
    **{
        (f"numpy.{core}.{module}", call.__name__.removeprefix(prefix)): _Function(call)
        for core in ("core", "_core")
        for module, call, prefix in (
            ("multiarray", _reconstruct, ""),
            ("multiarray", _scalar, "_"),
            ("numeric", _frombuffer, ""),
        )
    },
}
_STORAGE_CODES = {
    **{"Half": "f2", "Float": "f4", "Double": "f8", "BFloat16": _BFLOAT16, "Bool": "?"},
    **{"Long": "i8", "Int": "i4", "Short": "i2", "Char": "i1", "Byte": "u1"},
}
_GRAPH_CLASSES = {
    "data": "Data DataEdgeAttr DataTensorAttr",
    "storage": "BaseStorage NodeStorage EdgeStorage GlobalStorage",
    "feature_store": "TensorAttr",
    "graph_store": "EdgeAttr EdgeLayout",
}
_TORCH_NAMES: Mapping[tuple[str, str], Any] = {
    **PLAIN_NAMES,
    ("torch._utils", "_rebuild_tensor_v2"): _Function(_rebuild_tensor),
    **{("torch", f"{n}Storage"): _StorageType(code) for n, code in _STORAGE_CODES.items()},
    **{
        (f"torch_geometric.data.{module}", name): Inert
        for module, names in _GRAPH_CLASSES.items()
        for name in names.split()
    },
}
