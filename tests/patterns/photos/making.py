"""Small test images, good and bad, all generated on the spot."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    """No two corners alike, so that every rotation shows."""
    down, across = np.mgrid[:height, :width]
    red, green = across * 255 // width, down * 255 // height
    return Image.fromarray(np.stack([red, green, 255 - (red + seed) % 256], -1).astype(np.uint8))


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path, **options)
    return path


def fill(root: Path, names: list[str], content: bytes = b"nothing is opened") -> Path:
    """Files for tests that only look at names."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_bomb(side: int) -> bytes:
    """A real black PNG of `side` x `side` pixels, one bit each: small only as a file."""
    packer = zlib.compressobj(1)
    row = bytes(1 + side // 8)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def color_by_color(width: int, height: int) -> bytes:
    """A JPEG whose three colors come one after the other: its decoder holds the whole image."""
    segments, scan = _grey_jpeg(width, height)
    sof = struct.pack(">HBHHB", 17, 8, height, width, 3)
    colors = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    head = b"".join(segment for marker, segment in segments if marker not in (0xC0, 0xDA))
    scans = b"".join(
        b"\xff\xda" + struct.pack(">HB", 8, 1) + bytes([number, 0, 0, 63, 0]) + scan
        for number in (1, 2, 3)
    )
    return b"\xff\xd8" + head + b"\xff\xc0" + sof + colors + scans + b"\xff\xd9"


def _grey_jpeg(width: int, height: int) -> tuple[list[tuple[int, bytes]], bytes]:
    data = encode(Image.new("L", (width, height), 77), "JPEG")
    segments, at = [], 2
    while not segments or segments[-1][0] != 0xDA:
        (length,) = struct.unpack(">H", data[at + 2 : at + 4])
        segments.append((data[at + 1], data[at : at + 2 + length]))
        at += 2 + length
    return segments, data[at:-2]


def resized_header(jpeg: bytes, width: int, height: int) -> bytes:
    """The same JPEG, claiming other sides."""
    at = max(jpeg.find(b"\xff\xc0"), jpeg.find(b"\xff\xc2"))
    return jpeg[: at + 5] + struct.pack(">HH", height, width) + jpeg[at + 9 :]
