"""The door through which every photo comes: the file is judged by its header before any memory
is taken for it, and whatever goes wrong inside becomes a PhotoError."""

import math
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from PIL import Image
from PIL.ImageFile import ImageFile

from clew.patterns.photos.formats import (
    HEAD_BYTES,
    describe_other,
    is_kept_whole,
    tell_format,
    webp_size,
)
from clew.patterns.photos.quiet import quiet_pillow

MIN_SIDE = 8
MAX_PIXELS = 100_000_000
MAX_BYTES = 2**30
# Above this, threads take turns: 100 million pixels take up to 800 MB while they are read.
_LARGE_PIXELS = 25_000_000
_LARGE_TURN = threading.Lock()


class PhotoError(Exception):
    """A file that cannot be used as a photo: `kind` to count by, `reason` for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@contextmanager
def opened_photo(path: Path) -> Iterator[ImageFile]:
    """The file with its header read and its sides known; no pixel is decoded."""
    with quiet_pillow():
        try:
            with _open_file(path) as file, _open_image(file) as image:
                _refuse_tiny(image.size)
                yield image
        except PhotoError:
            raise
        except Image.DecompressionBombError:
            raise PhotoError("too large", "it takes more memory than a photo may") from None
        except MemoryError:  # of the machine at this moment: not the photo's fault
            raise PhotoError("unreadable", "there is too little memory free to read it") from None
        except Exception as error:  # damaged data makes a decoder raise whatever it likes
            raise _explain(error) from None


def prepare_decoding(image: ImageFile, at_least: int | None) -> AbstractContextManager[object]:
    """Ask for a reduced JPEG where sides of `at_least` are enough, and refuse what is too large.

    What comes back is to be held while the picture is decoded: large ones take turns.
    """
    sides = image.size
    kept_whole = is_kept_whole(image)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    needed = sides if kept_whole else image.size
    _refuse_too_large(sides, math.prod(needed))
    return _LARGE_TURN if math.prod(needed) > _LARGE_PIXELS else nullcontext()


def _open_file(path: Path) -> BinaryIO:
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):  # opening a pipe would wait for ever
        raise PhotoError("unreadable", "it is a folder, a pipe or a device, not a file")
    if not state.st_size:
        raise PhotoError("empty", "the file is empty (0 bytes)")
    if state.st_size > MAX_BYTES:
        size = f"{state.st_size / 2**30:,.1f} GiB"
        raise PhotoError("too large", f"the file has {size}; up to 1 GiB is read: make it smaller")
    return open(path, "rb")


def _open_image(file: BinaryIO) -> ImageFile:
    head = file.read(HEAD_BYTES)
    found = tell_format(head)
    if found is None:
        raise PhotoError(
            "no image",
            f"it is no JPEG, PNG, BMP, GIF, TIFF or WebP picture but {describe_other(head)}",
        )
    if found.name == "WebP":
        sides = webp_size(head)
        _refuse_too_large(sides, math.prod(sides))
    file.seek(0)
    return found.open(file)


def _refuse_tiny(sides: tuple[int, int]) -> None:
    if min(sides) < MIN_SIDE:
        raise PhotoError(
            "tiny",
            f"it is {sides[0]} x {sides[1]} pixels; at least {MIN_SIDE} x {MIN_SIDE} are needed",
        )


def _refuse_too_large(sides: tuple[int, int], pixels: int) -> None:
    """Before a picture is decoded: a small file may stand for gigabytes."""
    if pixels > MAX_PIXELS:
        raise PhotoError(
            "too large",
            f"it is {sides[0]:,} x {sides[1]:,} pixels; up to {MAX_PIXELS // 10**6} million are "
            f"read: make it smaller",
        )


def _explain(error: Exception) -> PhotoError:
    if isinstance(error, OSError) and error.errno is not None:
        return PhotoError("unreadable", f"it cannot be read ({error.strerror})")
    text = str(error).strip() or type(error).__name__
    return PhotoError("cut", f"the picture breaks off or is damaged ({text})")
