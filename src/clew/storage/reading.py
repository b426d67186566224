"""The one way to read a small file that somebody else may have written: only a regular file, of a
bounded size, JSON of bounded depth without NaN. JSON that clew writes ends with its checksum."""

import errno
import hashlib
import json
import mmap
import os
import re
import stat
import sys
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, NoReturn

import xxhash

from clew.base.texts import bytes_text

MAX_JSON_BYTES = 1 << 26
TOO_MANY_DIGITS = f"a number of more than {sys.int_info.default_max_str_digits:,} digits"
MAX_JSON_DEPTH = 32
_CHUNK_BYTES = 1 << 22
# Enough for a table of 1,700 x 1,700 numbers; files with more have longer values.
_FEW_VALUES, _BYTES_A_VALUE = 3_000_000, 16


_MEMBER = "clew_checksum"
_SEAL = re.compile(rb',?\n "%b": "([0-9a-f]{64})"\n}\n\Z' % _MEMBER.encode())
_SEAL_BYTES = 100


class RemoteFile(PosixPath):
    """A path on this machine that stands for a file elsewhere, such as at a URL."""

    def fetch(self) -> None:
        """Makes the file here the one that is there."""
        raise NotImplementedError

    def publish(self) -> None:
        """Makes the file there the one that is here."""
        raise NotImplementedError


class NotRegularFileError(OSError):
    """A pipe, a folder or a device lies where a file is expected."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(errno.EINVAL, f"it is {_describe(mode)}, not a file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. A link is followed (dataset caches are made of links), but a pipe
    or a device is refused instead of waited for; raises NotRegularFileError."""
    if isinstance(path, RemoteFile):
        path.fetch()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegularFileError(path, mode)
    return os.fdopen(descriptor, "rb")


def irregular_kind(path: Path, *, follow_links: bool = True) -> str | None:
    """What lies at `path` ("a folder", "a symbolic link") if it is not a regular file, None if it
    is one or nothing is there. Nothing is opened: opening a pipe would wait for a writer."""
    try:
        mode = (os.stat if follow_links else os.lstat)(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "a broken link" if follow_links and path.is_symlink() else None
    return None if stat.S_ISREG(mode) else _describe(mode)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The whole file; raises ValueError if it is larger than `max_bytes`, and OSError."""
    with open_regular(path) as file:
        return read_open_file(file, max_bytes)


def read_open_file(file: BinaryIO, max_bytes: int) -> bytes:
    """As `read_bounded`, of a file that is open already."""
    # Not `max_bytes`: a buffer of as many bytes as are asked for is allocated at once.
    content = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {bytes_text(max_bytes)}")
    return content


def read_json(
    path: Path, *, max_bytes: int = MAX_JSON_BYTES, finite: bool = True, encodable: bool = True
) -> Any:
    """The content of a JSON file; raises OSError, and ValueError if it is not valid JSON, larger
    than `max_bytes`, nested too deeply, does not match its checksum, if it has one (`seals`), or,
    with `finite`, holds NaN or infinity. Without `encodable`, its strings may contain half of a
    surrogate pair, which stands for a byte of a file name that is not UTF-8; it is valid JSON, but
    could never be written as UTF-8 again."""
    return parse_file(read_bounded(path, max_bytes), finite=finite, encodable=encodable)


def parse_file(content: bytes, *, finite: bool = True, encodable: bool = True) -> Any:
    """The content of a file as in `read_json`, from memory."""
    return without_seal(parse_json(content, finite=finite, encodable=encodable), content)


def parse_json(content: bytes | str, *, finite: bool = True, encodable: bool = True) -> Any:
    """JSON as in `read_json`, of any origin."""
    checks: dict[str, Any] = (
        {"parse_constant": _refuse_constant, "parse_float": _finite_float} if finite else {}
    )
    _refuse_many_values(
        content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    )
    try:
        value = json.loads(content, **checks)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} levels deep") from None
    except ValueError as error:
        if "int_max_str_digits" not in str(error):
            raise
        raise ValueError(f"it contains {TOO_MANY_DIGITS}") from None
    _check_depth(value)
    if encodable and ("\\u" in content if isinstance(content, str) else b"\\u" in content):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse_many_values(content: bytes) -> None:
    """A value takes up to 70 bytes in memory, but as few as three in a file."""
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values > _FEW_VALUES + len(content) // _BYTES_A_VALUE:
        raise ValueError(f"it contains {values:,} values in {bytes_text(len(content))}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not a number")


def _finite_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"it contains {text[:20]}, which is too large a number")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} levels deep")


def _describe(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"


def seal(text: str) -> bytes:
    """The JSON object in `text`, with a checksum."""
    body = text.rstrip().removesuffix("}").rstrip().encode()
    comma = "" if body == b"{" else ","
    return body + f'{comma}\n "{_MEMBER}": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def without_seal(value: Any, content: bytes) -> Any:
    """The value that was parsed from `content`, without its checksum; raises ValueError if that
    does not match."""
    if not isinstance(value, dict) or _MEMBER not in value:
        return value
    found = _SEAL.search(content, max(0, len(content) - _SEAL_BYTES))
    if found is None or hashlib.sha256(content[: found.start()]).hexdigest().encode() != found[1]:
        raise ValueError("it was changed after clew wrote it: its checksum does not match")
    del value[_MEMBER]
    return value


def hash_file(path: Path) -> str:
    """SHA-256 of a regular file as hex, read in chunks; raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def checksum_file(path: Path) -> str:
    """As `hash_file`, 20 times faster: it finds damage, not forgery."""
    with open_regular(path) as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return xxhash.xxh3_128(content).hexdigest()
        except ValueError:  # an empty file cannot be mapped
            return xxhash.xxh3_128().hexdigest()


def hash_text(*parts: str) -> str:
    """SHA-256 of several strings; the separator keeps ("ab", "c") apart from ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
