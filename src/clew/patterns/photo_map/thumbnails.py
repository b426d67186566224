"""Thumbnails of many photos in one JPEG: much smaller than one file per photo."""

import base64
import io
from collections.abc import Iterable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from clew.patterns.photo_map.block import Thumbnails

SIDE, COLUMNS = 64, 50
MOST_THUMBNAILS = 2_500
_QUALITY = 70


def draw_sheet(images: Iterable[UInt8[np.ndarray, "size size 3"]], count: int) -> bytes:
    """The `count` images as squares of `SIDE` pixels, `COLUMNS` per row: a JPEG, b"" without
    images."""
    if not count:
        return b""
    rows = -(-count // COLUMNS)
    sheet = Image.new("RGB", (SIDE * min(COLUMNS, count), SIDE * rows))
    for place, pixels in enumerate(images):
        square = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        sheet.paste(square, (SIDE * (place % COLUMNS), SIDE * (place // COLUMNS)))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()


def embed_sheet(sheet: bytes, count: int) -> Thumbnails | None:
    """The sheet inside a page; None if it has no images."""
    if not sheet or not count:
        return None
    address = f"data:image/jpeg;base64,{base64.b64encode(sheet).decode()}"
    return Thumbnails(address=address, side=SIDE, columns=COLUMNS, count=count)
