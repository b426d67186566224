"""One sentence for a disk that is full."""

import errno
from pathlib import Path

from clew.errors import DiskFullError


class disk_errors:  # noqa: N801 - reads as a phrase: with disk_errors(folder)
    """Turns the operating system's "no space left" into a sentence with a way on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f'the disk that holds "{self.folder}" is full. What was written before is kept: '
                f"make room, then run the same command again."
            ) from error
