"""Checksums: SHA-256 for whole files, CRC-32 for the record batches inside them, and a faster one
for what only this machine reads."""

import hashlib
import mmap
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from clew.storage.reading import open_regular

_CHUNK_BYTES = 1 << 22
_CHECKSUM_KEY = b"crc32"


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


def describe_batch(batch: pa.RecordBatch) -> dict[bytes, bytes]:
    """The metadata that a record batch is written with: its checksum."""
    return {_CHECKSUM_KEY: str(checksum_batch(batch)).encode()}


def has_checksum(batch: pa.RecordBatch, metadata: Any) -> bool | None:
    """Whether a record batch has the checksum in its metadata; None if there is none."""
    expected = (metadata or {}).get(_CHECKSUM_KEY)
    return None if expected is None else bool(int(expected) == checksum_batch(batch))


def checksum_batch(batch: pa.RecordBatch) -> int:
    """CRC-32 over the values of a record batch, the same before writing and after reading."""
    checksum = 0
    for column in batch.columns:
        checksum = _checksum_array(column, checksum)
    return checksum


def _checksum_array(array: pa.Array, checksum: int) -> int:
    checksum = zlib.crc32(len(array).to_bytes(8, "little"), checksum)
    if array.null_count:
        checksum = zlib.crc32(array.is_valid().to_numpy(zero_copy_only=False), checksum)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _checksum_array(array.dictionary_decode(), checksum)
    if pa.types.is_fixed_size_list(kind):
        return _checksum_array(array.flatten(), checksum)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return _checksum_array(array.flatten(), zlib.crc32(lengths, checksum))
    if pa.types.is_string(kind):
        text = "\0".join("" if value is None else value for value in array.to_pylist())
        return zlib.crc32(text.encode("utf-8", "surrogatepass"), checksum)
    known = array.fill_null(0) if array.null_count else array
    return zlib.crc32(known.to_numpy(zero_copy_only=False), checksum)
