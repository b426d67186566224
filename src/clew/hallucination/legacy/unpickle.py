"""Read pickles of plain data: every name in them is looked up in a list, never imported. The list
contains only our own stand-ins, so even an allowed name can only create a number, a container or an
array of numbers.
"""

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from clew.base.errors import InputError, UnsafePickleError
from clew.base.texts import for_terminal, shortened
from clew.hallucination.legacy.budget import Budget, choose_limit
from clew.hallucination.legacy.opcodes import PlainUnpickler
from clew.hallucination.legacy.stand_ins import (
    NUMPY_NAMES,
    Allowed,
    RefusedContentError,
    check_key,
    refuse_unless,
)
from clew.storage.reading import open_regular

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 18
# What gzip, zip and our own checks raise. RuntimeError: an encrypted zip; NotImplementedError: one
# with an unknown compression; KeyError: one without an entry.
_DAMAGE = (
    *(ValueError, TypeError, KeyError, EOFError, OverflowError, struct.error, OSError),
    *(zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError),
)


def load_pickle(path: Path, *, max_memory: int | str | None = None) -> Any:
    """The plain data in a `.pkl` or `.pkl.gz` file; compression is detected from the content.

    Raises UnsafePickleError if the file refers to anything but plain data (before anything is
    called), InputError if it cannot be read, is truncated, or takes more than `max_memory`: bytes
    or a text such as "4GB", by default 32 times the file's size and at least 256 MB.
    """
    with explain_errors(path):
        return unpickle(path, Budget(path, choose_limit(path, max_memory)))


def unpickle(path: Path, budget: Budget) -> Any:
    """As `load_pickle`; call it inside `explain_errors`."""
    with open_regular(path) as raw, _decompress(raw) as file:
        value = PlainUnpickler(file, PLAIN_NAMES, budget).load()
        # Reading to the end also checks gzip's length and checksum.
        surplus = file.read(_CHUNK_BYTES)
    if surplus:
        raise InputError(
            f'"{path}" continues with more bytes after its first pickle: clew reads files with one '
            "list of records. Split the file with the tool that wrote it."
        )
    return value


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn what damaged or malicious bytes raise into one sentence about the file."""
    try:
        yield
    except RefusedContentError as error:
        raise UnsafePickleError(
            f'"{path}" was rejected: {error}. Nothing in it was executed. Ask its author for a '
            "file of plain lists, dicts and NumPy arrays."
        ) from None
    except FileNotFoundError:
        raise InputError(f'there is no file "{path}". Check the path.') from None
    except PermissionError:
        raise InputError(f'"{path}" cannot be read: check its permissions.') from None
    except MemoryError:
        raise InputError(explain_no_memory(path)) from None
    except _DAMAGE as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f'"{path}" is damaged or truncated ({for_terminal(lines[0][:200])}): copy it again '
            "from its source, or create it again."
        ) from None


def explain_no_memory(path: Path) -> str:
    return (
        f'"{path}" requires more memory than is available: it is damaged or too large for this '
        "machine. Convert it on a machine with more memory."
    )


def _decompress(file: BinaryIO) -> BinaryIO:
    compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    return io.BufferedReader(_GzipPieces(file), _CHUNK_BYTES) if compressed else file


class _GzipPieces(io.RawIOBase):
    """Decompresses into the reader's own memory, a piece at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        piece = self._file.read(min(len(target), _CHUNK_BYTES))
        target[: len(piece)] = piece
        return len(piece)


def _encode(text: Any, encoding: Any) -> bytes:
    """How pickles of protocol 2 and older spell bytes; other codecs decompress or transform."""
    known = isinstance(encoding, str) and encoding in ("latin1", "latin-1")
    refuse_unless(known, f"it encodes text with {shortened(encoding)}")
    refuse_unless(isinstance(text, str), "it encodes something other than text")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands in for `bytes()` without an argument: `bytes(10**12)` would exhaust memory."""
    return b""


def _bytearray(content: Any = b"") -> bytearray:
    refuse_unless(
        isinstance(content, bytes), "it creates a bytearray from something other than bytes"
    )
    return bytearray(content)


def _list(items: Any = ()) -> list[Any]:
    return list(_check_items(items))


def _tuple(items: Any = ()) -> tuple[Any, ...]:
    return tuple(_check_items(items))


def _set(items: Any = ()) -> set[Any]:
    return set(map(check_key, _check_items(items)))


def _frozenset(items: Any = ()) -> frozenset[Any]:
    return frozenset(map(check_key, _check_items(items)))


def _dict(pairs: Any = ()) -> dict[Any, Any]:
    """From pairs, as Python 2 pickled an OrderedDict."""
    if isinstance(pairs, dict):
        return dict(pairs)
    checked = [_check_items(pair) for pair in _check_items(pairs)]
    refuse_unless(all(len(pair) == 2 for pair in checked), "a dict in it is malformed")
    return {check_key(key): value for key, value in checked}


def _check_items(items: Any) -> Any:
    """Only containers: the items of bytes or texts would take many times their memory."""
    plain = isinstance(items, list | tuple | set | frozenset | dict)
    refuse_unless(plain, f"it creates a container from a {type(items).__name__}")
    return items


def _complex(real: Any = 0, imaginary: Any = 0) -> complex:
    parts = (real, imaginary)
    refuse_unless(
        all(type(part) in (int, float) for part in parts), "a complex number is malformed"
    )
    return complex(real, imaginary)


def _allow(module: str, **calls: Callable[..., Any]) -> dict[tuple[str, str], Allowed]:
    return {(module, name): Allowed(call) for name, call in calls.items()}


_CONTAINERS: Mapping[str, Callable[..., Any]] = {
    "list": _list,
    "dict": _dict,
    "tuple": _tuple,
    "set": _set,
    "frozenset": _frozenset,
    "complex": _complex,
    "bytes": _empty_bytes,
    "bytearray": _bytearray,
}

PLAIN_NAMES: Mapping[tuple[str, str], Any] = {
    # Protocols 0 to 2 use the module's Python 2 name.
    **_allow("__builtin__", **_CONTAINERS),
    **_allow("builtins", **_CONTAINERS),
    **_allow("collections", OrderedDict=_dict),
    **_allow("_codecs", encode=_encode),
    **NUMPY_NAMES,
}
