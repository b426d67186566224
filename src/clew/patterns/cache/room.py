"""Whether what is about to be written fits on the disk."""

import shutil
from pathlib import Path

from clew.errors import DiskFullError
from clew.wording import bytes_text


def refuse_full_disk(folder: Path, needed: int, what: str) -> None:
    """Raises DiskFullError; `what` begins its sentence, up to the number of bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFullError(
            f'{what} {bytes_text(needed)}, but the disk that holds "{folder}" has '
            f"{bytes_text(free)} free. Make room, then run the same command again, or choose a "
            f"smaller `image_size`."
        )
