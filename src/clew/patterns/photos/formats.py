"""Which picture format a file holds, told from its first bytes whatever its name says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

HEAD_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Format:
    """A picture format: its first bytes, and Pillow's reader of it.

    The reader is called directly: `Image.open` refuses a large JPEG that `draft` makes small,
    and opens a JPEG with a second picture inside by a reader that has no `draft`.
    """

    name: str
    begins: tuple[bytes, ...]
    open: Callable[[BinaryIO], ImageFile]


FORMATS = (
    Format(name="JPEG", begins=(b"\xff\xd8\xff",), open=JpegImageFile),
    Format(name="PNG", begins=(b"\x89PNG\r\n\x1a\n",), open=PngImageFile),
    Format(name="GIF", begins=(b"GIF87a", b"GIF89a"), open=GifImageFile),
    Format(name="BMP", begins=(b"BM",), open=BmpImageFile),
    Format(name="TIFF", begins=(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), open=TiffImageFile),
    Format(name="WebP", begins=(b"RIFF",), open=WebPImageFile),
)
# What is found under a photo's name now and then, and what a user calls it.
_OTHERS = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
    (b"<?xml", "an XML or SVG file"),
    (b"<svg", "an SVG drawing"),
    (b"8bps", "a Photoshop file"),
)
_BOXES = {b"avif": "an AVIF picture", b"heic": "a HEIC photo", b"mif1": "a HEIC photo"}


def tell_format(head: bytes) -> Format | None:
    """The format of a file that begins with these bytes; None for what is no picture we read."""
    for known in FORMATS:
        if head.startswith(known.begins) and (known.name != "WebP" or head[8:12] == b"WEBP"):
            return known
    return None


def describe_other(head: bytes) -> str:
    """What a file seems to be that is no picture, for a sentence."""
    if head[4:8] == b"ftyp":
        return _BOXES.get(head[8:12], "a video or another kind of picture")
    lowered = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for begin, words in _OTHERS:
        if lowered.startswith(begin.lower()):
            return words
    if not any(head):
        return "only zero bytes"
    text = head.decode("utf-8", "ignore").strip()
    return f'text ("{text[:20]}...")' if text.isprintable() and text else "something else"


def webp_size(head: bytes) -> tuple[int, int]:
    """Width and height of a WebP picture, whose reader takes memory as soon as it is opened."""
    kind = head[12:16]
    if kind == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF


def is_kept_whole(image: ImageFile) -> bool:
    """Whether a JPEG's decoder must hold the whole picture, even to give a reduced one.

    So it is when the picture comes in several scans: refined step by step (progressive), or
    colour by colour. The reader has just passed the first scan's header.
    """
    if not isinstance(image, JpegImageFile) or image.fp is None:
        return True
    if image.info.get("progressive"):
        return True
    header_bytes = 6 + 2 * image.layers  # of a scan that holds all colours
    after = image.fp.tell()
    image.fp.seek(max(0, after - header_bytes))
    header = image.fp.read(3)
    image.fp.seek(after)
    return header != bytes((0, header_bytes, image.layers))


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
