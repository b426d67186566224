"""Reads pickles of plain data: every name in them is looked up in a list, never imported.

What the list holds are stand-ins of our own, so even an allowed name cannot be talked into
more than making a number, a container or an array of numbers.
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
    """The plain data in a `.pkl` or `.pkl.gz` file; compression is seen from the content.

    Raises UnsafePickleError when the file refers to anything but plain data (before anything
    of it is called), InputError when it cannot be read or is cut short.
    """
    with explain_errors(path), _open_plain_or_gzip(path) as file:
        value = RestrictedUnpickler(file, path, PLAIN_NAMES).load()
        # Reading to the end checks gzip's length and checksum too.
        surplus = sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
    if surplus:
        raise InputError(
            f'"{path}" goes on for {surplus:,} bytes behind its first pickle: clew reads files '
            f"with one list of records. Split the file with the tool that wrote it."
        )
    return value


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that knows `names` and nothing else."""

    def __init__(self, file: BinaryIO, path: Path, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file)
        self._path = path
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            # As repr: the name comes from the file and goes to somebody's terminal.
            what = repr(f"{module}.{name}")[:120]
            raise UnsafePickleError(
                f'"{self._path}" was refused: it refers to {what}, which is not plain data and '
                f"could run code. Nothing of it was run. If you trust whoever made it, ask for a "
                f"file of plain lists, dicts and numpy arrays; never load it as it is."
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedContentError(f"it refers to something outside the file ({pid!r:.80})")


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn whatever damaged or hostile bytes set off into one sentence about the file.

    A broken pickle can end in nearly any exception (IndexError, KeyError, TypeError,
    OverflowError, MemoryError, zlib.error, ...), hence the wide net.
    """
    try:
        yield
    except RefusedContentError as error:
        raise UnsafePickleError(
            f'"{path}" was refused: {error}. Nothing of it was run. Ask whoever made it for a '
            f"file of plain lists, dicts and numpy arrays."
        ) from None
    except ClewError:
        raise
    except FileNotFoundError:
        raise InputError(f'there is no file "{path}". Check the path.') from None
    except PermissionError:
        raise InputError(f'"{path}" may not be read by this user: change its rights.') from None
    except MemoryError:
        raise InputError(
            f'"{path}" asks for more memory than is free: it is damaged, or too large for this '
            f"machine. Convert it on one with more."
        ) from None
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f'"{path}" is damaged or cut short ({lines[0][:200]}): copy it again from where it '
            f"came from, or make it again."
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
    """Takes no argument: `bytes(10**12)` would fill the memory."""
    return b""


def _bytearray(content: bytes = b"") -> bytearray:
    refuse_unless(isinstance(content, bytes), "it makes a bytearray from something else than bytes")
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
    # Protocols 0 to 2 keep Python 2's name of the module.
    **_allow("__builtin__", **_CONTAINERS),
    **_allow("builtins", **_CONTAINERS),
    **_allow("collections", OrderedDict=dict),
    **_allow("_codecs", encode=_encode),
    **NUMPY_NAMES,
}
