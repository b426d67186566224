"""How large the cache may become. The limit belongs to its folder, not to a process: all that share
the folder keep to the last one that was set."""

import json
import shutil
from pathlib import Path
from typing import Annotated, TypedDict

from clew.base.typed_json import Bounds, read_as
from clew.storage.reading import read_json
from clew.storage.writing import replace_file

LIMITS = "cache.json"
_DEFAULT_BYTES = 64 * 10**9
_SHARE_OF_DISK = 0.5
_MAX_FILE_BYTES = 10_000


class _Limits(TypedDict):
    max_bytes: Annotated[int, Bounds(least=1, most=1 << 60)]


def set_limit(cache_dir: Path, max_bytes: int) -> None:
    replace_file(cache_dir / LIMITS, json.dumps(_Limits(max_bytes=max_bytes)).encode())


def read_limit(cache_dir: Path) -> int:
    """The limit in bytes; without one, 64 GB, but at most half of the free space."""
    try:
        raw = read_json(cache_dir / LIMITS, max_bytes=_MAX_FILE_BYTES)
        limits: _Limits = read_as(_Limits, raw)
        return limits["max_bytes"]
    except (OSError, ValueError):
        free = shutil.disk_usage(cache_dir).free
        return min(_DEFAULT_BYTES, int(_SHARE_OF_DISK * free))
