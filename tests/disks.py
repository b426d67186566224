"""A disk that is soon full, and folders whose files come and go."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A disk of that size at `folder`; the test is skipped where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk requires root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def bytes_in(folder: Path, pattern: str = "*") -> int:
    """The total size of all files that exist at the moment."""
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
