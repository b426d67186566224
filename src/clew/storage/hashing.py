"""Checksums: SHA-256 for whole files, CRC-32 for the record batches inside them."""

import hashlib
import zlib
from pathlib import Path

import pyarrow as pa

from clew.storage.reading import open_regular

_CHUNK_BYTES = 1 << 22


def hash_file(path: Path) -> str:
    """SHA-256 of a regular file as hex, read in chunks; raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def hash_text(*parts: str) -> str:
    """SHA-256 of several strings; the separator keeps ("ab", "c") apart from ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


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
