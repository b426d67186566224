"""Read pickles of plain data: every name in them is looked up in a list, never imported. The list
contains only our own stand-ins, so even an allowed name can only create a number, a container or an
array of numbers.
"""

import gzip
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from clew.errors import ClewError, InputError, UnsafePickleError
from clew.hallucination.legacy.stand_ins import (
    NUMPY_NAMES,
    Allowed,
    RefusedContentError,
    refuse_unless,
)

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20


def load_pickle(path: Path) -> Any:
    """The plain data in a `.pkl` or `.pkl.gz` file; compression is detected from the content.

    Raises UnsafePickleError if the file refers to anything but plain data (before anything is
    called), InputError if it cannot be read or is truncated.
    """
    with explain_errors(path), _open_plain_or_gzip(path) as file:
        value = RestrictedUnpickler(file, path, PLAIN_NAMES).load()
        # Reading to the end also checks gzip's length and checksum.
        surplus = sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
    if surplus:
        raise InputError(
            f'"{path}" continues for {surplus:,} bytes after its first pickle: clew reads files '
            f"with one list of records. Split the file with the tool that wrote it."
        )
    return value


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that knows only `names`."""

    def __init__(self, file: BinaryIO, path: Path, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file)
        self._path = path
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            # As repr: the name comes from the file and is printed to a terminal.
            what = repr(f"{module}.{name}")[:120]
            raise UnsafePickleError(
                f'"{self._path}" was rejected: it refers to {what}, which is not plain data and '
                "could run code. Nothing in it was executed. If you trust its author, ask for a "
                "file of plain lists, dicts and NumPy arrays; do not load this one."
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedContentError(f"it refers to something outside the file ({pid!r:.80})")


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn whatever damaged or malicious bytes raise into one sentence about the file. A damaged
    pickle can end in nearly any exception (IndexError, KeyError, TypeError, OverflowError,
    MemoryError, zlib.error, ...), hence the wide net.
    """
    try:
        yield
    except RefusedContentError as error:
        raise UnsafePickleError(
            f'"{path}" was rejected: {error}. Nothing in it was executed. Ask its author for a '
            "file of plain lists, dicts and NumPy arrays."
        ) from None
    except ClewError:
        raise
    except FileNotFoundError:
        raise InputError(f'there is no file "{path}". Check the path.') from None
    except PermissionError:
        raise InputError(f'"{path}" cannot be read: check its permissions.') from None
    except MemoryError:
        raise InputError(
            f'"{path}" requires more memory than is available: it is damaged or too large for this '
            "machine. Convert it on a machine with more memory."
        ) from None
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f'"{path}" is damaged or truncated ({lines[0][:200]}): copy it again from its source, '
            "or create it again."
        ) from None


def _open_plain_or_gzip(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return gzip.open(path, "rb") if compressed else path.open("rb")  # type: ignore[return-value]


def _encode(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 and older spell bytes; other codecs decompress or transform."""
    refuse_unless(encoding in ("latin1", "latin-1"), f'it encodes text with "{encoding}"')
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands in for `bytes()` without an argument: `bytes(10**12)` would exhaust memory."""
    return b""


def _bytearray(content: bytes = b"") -> bytearray:
    refuse_unless(
        isinstance(content, bytes), "it creates a bytearray from something other than bytes"
    )
    return bytearray(content)


def _allow(module: str, **calls: Callable[..., Any]) -> dict[tuple[str, str], Allowed]:
    return {(module, name): Allowed(call) for name, call in calls.items()}


_CONTAINERS: Mapping[str, Callable[..., Any]] = {
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": complex,
    "bytes": _empty_bytes,
    "bytearray": _bytearray,
}

PLAIN_NAMES: Mapping[tuple[str, str], Any] = {
    # Protocols 0 to 2 use the module's Python 2 name.
    **_allow("__builtin__", **_CONTAINERS),
    **_allow("builtins", **_CONTAINERS),
    **_allow("collections", OrderedDict=dict),
    **_allow("_codecs", encode=_encode),
    **NUMPY_NAMES,
}
