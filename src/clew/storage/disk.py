"""Disk space: checked before work starts, and reported in one sentence when it runs out."""

import errno
import os
import shutil
from pathlib import Path

from clew.base.errors import DiskFullError
from clew.base.texts import bytes_text


class disk_errors:  # noqa: N801 - reads as a phrase: with disk_errors(folder)
    """Turns the operating system's "no space left" into an error that says what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f'the disk that holds "{os.fspath(self.folder)}" is full. Everything written so '
                "far is kept. Free some space, then run the same command again to resume."
            ) from error


def refuse_full_disk(folder: Path, needed_bytes: int, *, what: str, advice: str) -> None:
    """Raises DiskFullError when `needed_bytes` do not fit. `what` is the start of the sentence, up
    to the number of bytes; `advice` is a separate sentence."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise DiskFullError(
            f'{what} {bytes_text(needed_bytes)}, but the disk that holds "{folder}" has '
            f"{bytes_text(free)} free. {advice}"
        )
