"""Read a legacy file in a process of its own with limited memory and time, so that a hostile file
can neither run code nor exhaust the machine. It answers with JSON and arrays in a temporary file,
which are mapped, not loaded."""

import json
import mmap
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from signal import SIGXCPU
from typing import Any, BinaryIO, Literal

import numpy as np
import psutil

from clew.base.errors import InputError, UnsafePickleError
from clew.base.python_processes import start_function
from clew.base.settings import read_size
from clew.engine.plan import read_limits
from clew.hallucination.legacy.records import write_samples
from clew.hallucination.legacy.unpickling import explain_errors
from clew.storage.reading import open_regular

FileKind = Literal["pickle", "torch"]
# Real files take up to 5 times their size, compressed ones up to 20 times.
_TIMES_FILE_SIZE = 32
LEAST_BYTES = 256_000_000
# CPU time. Real files take less than 0.1 s per MB.
_LEAST_SECONDS, _BYTES_PER_SECOND = 5, 1_000_000
# A machine that is busy with other things must not make a file look hostile.
_WAIT_TIMES = 20


class Samples(Sequence[dict[str, Any]]):
    """The samples of a file, decoded when they are asked for: JSON and arrays that lie in a
    temporary file. One that cannot be converted has a `reason` instead of its fields."""

    def __init__(self, kind: str, content: mmap.mmap, start: int, end: int) -> None:
        self.kind, self._content = kind, content
        self._lines = content[start:end].split(b"\n")

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:
        return json.loads(self._lines[index], object_hook=self._decode)

    def _decode(self, value: dict[str, Any]) -> Any:
        if "offset" not in value:
            return value
        return np.ndarray(value["shape"], value["dtype"], self._content, value["offset"])


def load_samples(path: Path, file_kind: FileKind, max_memory: int | str | None = None) -> Samples:
    """The samples of a legacy file. Raises UnsafePickleError if it refers to anything but plain
    data (before anything is called), InputError if it cannot be read, is damaged, or takes more
    than `max_memory`: bytes or a text such as "4GB", by default 32 times the file's size and at
    least 256 MB."""
    with explain_errors(path):
        limit = choose_limit(path, max_memory)
        source = open_regular(path)
    with source, tempfile.TemporaryFile() as scratch:
        _read_apart(path, file_kind, limit, source, scratch)
        if not scratch.seek(0, 2):
            raise InputError(f'"{path}" crashed its reader: it is damaged, or made to do so.')
        content = mmap.mmap(scratch.fileno(), 0, access=mmap.ACCESS_READ)
    end = content.rfind(b"\n")
    about = json.loads(content[end + 1 :])
    if "error" in about:
        unsafe = about["error"] == UnsafePickleError.__name__
        raise (UnsafePickleError if unsafe else InputError)(about["text"])
    return Samples(about["kind"], content, about["start"], end)


def choose_limit(path: Path, max_memory: int | str | None) -> int:
    """The bytes that a file may take: `max_memory`, or in proportion to the file's size, but no
    more than is free. Raises InputError if `max_memory` is not a size."""
    if max_memory is not None:
        return read_size("max_memory", max_memory)
    free = psutil.virtual_memory().available
    group_free = read_limits().free_bytes
    if group_free is not None:
        free = min(free, group_free)
    return max(LEAST_BYTES, min(_TIMES_FILE_SIZE * path.stat().st_size, free))


def _read_apart(
    path: Path, file_kind: FileKind, limit: int, source: BinaryIO, scratch: Any
) -> None:
    seconds = _LEAST_SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    child = start_function(
        *(write_samples, str(path), file_kind, limit, seconds),
        stdin=source,
        stdout=scratch,
        stderr=subprocess.DEVNULL,
    )
    try:
        too_long = child.wait(_WAIT_TIMES * seconds) == -SIGXCPU
    except subprocess.TimeoutExpired:
        too_long = True
    finally:
        child.kill()
        child.wait()
    if too_long:
        raise InputError(
            f'"{path}" takes more than {seconds} s to read: it is damaged, or made to hang. Ask '
            "its author for a file of plain lists, dicts and NumPy arrays."
        )
