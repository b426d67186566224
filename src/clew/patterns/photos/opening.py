"""The only way to open a photo: its format is detected from its first bytes, what decoding it would
cost is known from its header (a small file may ask for gigabytes, or for minutes), and every
failure becomes a PhotoError."""

import io
import math
import mmap
import os
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from clew.base.texts import bytes_text
from clew.storage.reading import NotRegularFileError, open_regular

# A file, or the bytes of one.
PhotoSource = Path | bytes
MIN_SIDE = 8
MAX_PIXELS = 100_000_000
MAX_BYTES = 2**30
# Above this, threads take turns; a process that cannot postpones the photo.
_LARGE_BYTES = 200_000_000
TAKES_TURNS = "takes turns"
_LARGE_TURN = threading.Lock()
HEAD_BYTES = 32
_FILTERS_LOCK = threading.Lock()
_FROM_PILLOW = ("ignore", None, Warning, re.compile(r"PIL(\.|$)"), 0)
_readers = 0
# What is sometimes found under a photo's name, and what a user calls it.
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
_Data = mmap.mmap | bytes
MAX_MEMORY_BYTES = 10**9
# Pixels times scans: a scan of a JPEG takes up to 10 ns per pixel.
_MAX_SCANNED = 2 * 10**9
_PIXELS_A_SCAN = 100_000  # what a scan of no pixels at all costs
_MAX_PARTS = 200_000  # segments, chunks or blocks, which Pillow reads one by one in Python
_MAX_RLE = 10_000_000  # pixels and bytes of a run-length encoded BMP, which it decodes in Python
# Pillow holds these in one byte per pixel, 16-bit gray in two, and everything else in four.
_ONE_BYTE = {"1", "L", "P"}
_WIDE = {"I", "F"}
_CONVERTED_BYTES = 4  # a second image, in RGB
_NUMBERS_BYTES = 16  # numbers that are scaled to 8 bits
_WEBP_BYTES = 8  # its reader holds two canvases
_COEFFICIENT_BYTES = 2
_TILE_WIDTH, _TILE_LENGTH, _ROWS_PER_STRIP = 322, 323, 278
_BITS_PER_SAMPLE, _SAMPLES_PER_PIXEL, _COMPRESSION = 258, 277, 259
_JPEG_IN_TIFF = (6, 7)
_SOS, _EOI = 0xDA, 0xD9
_ALONE = {0x01, *range(0xD0, 0xDA)}  # markers without a length
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")


class PhotoError(Exception):
    """A file that cannot be used as a photo: `kind` to count by, `reason` for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@contextmanager
def opened_photo(source: PhotoSource) -> Iterator[ImageFile]:
    """The photo with its header read and its sides known; no pixel is decoded."""
    with quiet_pillow():
        try:
            with _open_file(source) as file, _open_image(file) as image:
                _refuse_tiny(image.size)
                yield image
        except PhotoError:
            raise
        except Image.DecompressionBombError:
            raise PhotoError("too large", "decoding it would take too much memory") from None
        except MemoryError:  # the machine is short of memory right now: not the photo's fault
            raise PhotoError("unreadable", "there is too little free memory to read it") from None
        except Exception as error:  # damaged data makes a decoder raise anything
            raise _explain(error) from None


def prepare_decoding(
    image: ImageFile, at_least: int | None, *, take_turns: bool = True
) -> AbstractContextManager[object]:
    """Requests a reduced JPEG if sides of `at_least` are enough, and refuses what would take too
    much memory or time.

    Hold the returned context while the image is decoded: large ones take turns. Without
    `take_turns`, they raise a PhotoError of the kind `TAKES_TURNS`.
    """
    sides = image.size
    kept_whole = is_kept_whole(image)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    _refuse_too_large(sides, math.prod(sides if kept_whole else image.size))
    needed = needed_bytes(image, sides, kept_whole=kept_whole)
    if needed > MAX_MEMORY_BYTES:
        raise PhotoError(
            "too large",
            f"it is {sides[0]:,} x {sides[1]:,} pixels and would take {bytes_text(needed)} of "
            f"memory, but the limit is {bytes_text(MAX_MEMORY_BYTES)}: resize it",
        )
    refuse_slow(image, sides, kept_whole=kept_whole)
    if needed <= _LARGE_BYTES:
        return nullcontext()
    if not take_turns:
        raise PhotoError(TAKES_TURNS, f"decoding it takes {bytes_text(needed)} of memory")
    return _LARGE_TURN


def _open_file(source: PhotoSource) -> BinaryIO:
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    except NotRegularFileError as error:
        raise PhotoError("unreadable", error.strerror or "it is not a file") from None
    size = len(source) if isinstance(source, bytes) else os.fstat(file.fileno()).st_size
    if 0 < size <= MAX_BYTES:
        return file
    file.close()
    if not size:
        raise PhotoError("empty", "the file is empty (0 bytes)")
    shown = f"{size / 2**30:,.1f} GiB"
    raise PhotoError("too large", f"the file is {shown}, but the limit is 1 GiB: make it smaller")


def _open_image(file: BinaryIO) -> ImageFile:
    head = file.read(HEAD_BYTES)
    found = describe_format(head)
    if found is None:
        raise PhotoError(
            "not an image",
            f"it is not a JPEG, PNG, BMP, GIF, TIFF or WebP image but {describe_other(head)}",
        )
    if found.name == "WebP":
        sides = webp_size(head)
        _refuse_too_large(sides, math.prod(sides))
    refuse_many_parts(file, found.name)
    file.seek(0)
    return found.open(file)


def _refuse_tiny(sides: tuple[int, int]) -> None:
    if min(sides) < MIN_SIDE:
        raise PhotoError(
            "tiny",
            f"it is {sides[0]} x {sides[1]} pixels; at least {MIN_SIDE} x {MIN_SIDE} are required",
        )


def _refuse_too_large(sides: tuple[int, int], pixels: int) -> None:
    """Raise PhotoError for an image that is too large, before it is decoded: a small file may
    expand to gigabytes."""
    if pixels > MAX_PIXELS:
        raise PhotoError(
            "too large",
            f"it is {sides[0]:,} x {sides[1]:,} pixels, but the limit is {MAX_PIXELS // 10**6} "
            "million pixels: resize it",
        )


def _explain(error: Exception) -> PhotoError:
    if isinstance(error, OSError) and error.errno is not None:
        return PhotoError("unreadable", f"it cannot be read ({error.strerror})")
    text = str(error).strip() or type(error).__name__
    return PhotoError("truncated", f"the image is truncated or damaged ({text})")


@dataclass(frozen=True, kw_only=True)
class Format:
    """An image format: its first bytes, and Pillow's reader for it.

    The reader is called directly: `Image.open` refuses a large JPEG that `draft` makes small, and
    opens a JPEG with a second image inside with a reader that has no `draft`.
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


def describe_format(head: bytes) -> Format | None:
    """The format of a file that starts with these bytes; None for anything we do not read."""
    for known in FORMATS:
        if head.startswith(known.begins) and (known.name != "WebP" or head[8:12] == b"WEBP"):
            return known
    return None


def describe_other(head: bytes) -> str:
    """What a file that is not an image seems to be, for a sentence."""
    if head[4:8] == b"ftyp":
        return _BOXES.get(head[8:12], "a video or another kind of image")
    lowered = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for begin, words in _OTHERS:
        if lowered.startswith(begin.lower()):
            return words
    if not any(head):
        return "only zero bytes"
    text = head.decode("utf-8", "ignore").strip()
    return f'text ("{text[:20]}...")' if text.isprintable() and text else "something else"


def webp_size(head: bytes) -> tuple[int, int]:
    """Width and height of a WebP image, whose reader allocates memory as soon as it is opened."""
    kind = head[12:16]
    if kind == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF


def is_kept_whole(image: ImageFile) -> bool:
    """Whether a JPEG's decoder must hold the whole image, even to give a reduced one.

    That is so when the image comes in several scans: progressive, or color by color. The reader has
    just passed the first scan's header.
    """
    if not isinstance(image, JpegImageFile) or image.fp is None:
        return True
    if image.info.get("progressive"):
        return True
    header_bytes = 6 + 2 * image.layers  # of a scan that holds all colors
    after = image.fp.tell()
    image.fp.seek(max(0, after - header_bytes))
    header = image.fp.read(3)
    image.fp.seek(after)
    return header != bytes((0, header_bytes, image.layers))


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Suppresses warnings from Pillow while at least one thread is inside: what matters becomes a
    PhotoError.

    `warnings.catch_warnings` would lose other people's filters when threads come and go.
    """
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _readers
    with _FILTERS_LOCK:
        _readers += change
        # Looked up each time: others may have replaced the list meanwhile.
        filters = cast(list[Any], warnings.filters)
        if _readers and _FROM_PILLOW not in filters:
            filters.insert(0, _FROM_PILLOW)
        if not _readers and _FROM_PILLOW in filters:
            filters.remove(_FROM_PILLOW)


def needed_bytes(image: ImageFile, sides: tuple[int, int], *, kept_whole: bool) -> int:
    """The memory that decoding takes. `sides` are those of the file, `image.size` those after
    `draft`; `kept_whole` if the decoder of a JPEG holds the whole image."""
    needed = math.prod(image.size) * _pixel_bytes(image)
    if isinstance(image, JpegImageFile) and kept_whole:
        needed += math.prod(sides) * image.layers * _COEFFICIENT_BYTES
    if isinstance(image, TiffImageFile):
        needed += _part_pixels(image) * _raw_bytes(image)
    return needed


def _pixel_bytes(image: ImageFile) -> int:
    if image.mode in _WIDE:
        return 4 + _NUMBERS_BYTES
    if image.mode.startswith("I;16"):
        return 2 + _NUMBERS_BYTES // 2
    held = 1 if image.mode in _ONE_BYTE else 4
    more = _WEBP_BYTES if isinstance(image, WebPImageFile) else 0
    return held + _CONVERTED_BYTES + more


def _part_pixels(image: TiffImageFile) -> int:
    """The pixels of one strip or tile, which libtiff decodes at once."""
    width, height = (_number(image, tag) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    if width and height:
        return width * height
    rows = _number(image, _ROWS_PER_STRIP) or image.size[1]
    return image.size[0] * min(rows, image.size[1])


def _raw_bytes(image: TiffImageFile) -> int:
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))
    samples = max(_number(image, _SAMPLES_PER_PIXEL), 1)
    return max(4, samples * max(bits if isinstance(bits, tuple) else (bits,)) // 8)


def _number(image: TiffImageFile, tag: int) -> int:
    value = image.tag_v2.get(tag, 0)
    value = value[0] if isinstance(value, tuple) and value else value
    return value if isinstance(value, int) else 0


def _too_slow(why: str) -> PhotoError:
    return PhotoError("too large", f"{why}: save it as a plain JPEG or PNG")


def refuse_many_parts(file: BinaryIO, name: str) -> None:
    """Raises PhotoError for a file of that format with so many parts before its pixels that
    reading them would take minutes; a damaged one is left to its reader."""
    count = {"JPEG": _count_segments, "PNG": _count_chunks, "GIF": _count_blocks}.get(name)
    if count is None:
        return
    with _contents(file) as data:
        if count(data) > _MAX_PARTS:
            raise _too_slow(f"it consists of more than {_MAX_PARTS:,} parts")


@contextmanager
def _contents(file: IO[bytes]) -> Iterator[_Data]:
    """All bytes of a file on disk or in memory, without a copy."""
    if isinstance(file, io.BytesIO):
        yield file.getvalue()
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def refuse_slow(image: ImageFile, sides: tuple[int, int], *, kept_whole: bool) -> None:
    """Raises PhotoError for an image whose decoder would take minutes; arguments as for
    `needed_bytes`."""
    if isinstance(image, BmpImageFile):
        _refuse_long_runs(image)
    is_jpeg = isinstance(image, JpegImageFile) and kept_whole
    tiff = isinstance(image, TiffImageFile) and _number(image, _COMPRESSION) in _JPEG_IN_TIFF
    if (is_jpeg or tiff) and image.fp is not None:
        pixels = _part_pixels(image) if isinstance(image, TiffImageFile) else math.prod(sides)
        with _contents(image.fp) as data:
            scans = _count_scans(data) if is_jpeg else _count_all_scans(data)
        if scans * (pixels + _PIXELS_A_SCAN) > _MAX_SCANNED:
            raise _too_slow(f"its {scans:,} scans would take too long to decode")


def _refuse_long_runs(image: BmpImageFile) -> None:
    if image.fp is None or not any(tile.codec_name == "bmp_rle" for tile in image.tile):
        return
    place = image.fp.tell()
    length = image.fp.seek(0, 2)
    image.fp.seek(place)
    if max(math.prod(image.size), length) > _MAX_RLE:
        raise _too_slow("it is a run-length encoded BMP, which would take too long")


def _count_segments(data: _Data) -> int:
    """Segments of a JPEG before its first scan; padding bytes count, since they are read alone."""
    at, count = 2, 0
    while count <= _MAX_PARTS and at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == _SOS:
            break
        count += 1
        padding = marker == 0xFF
        at += 1 if padding else 2 if marker in _ALONE else 2 + _big(data, at + 2)
    return count


def _count_scans(data: _Data) -> int:
    """Scans of a JPEG, until its end or more than can be decoded."""
    at, scans = 2, 0
    while scans <= _MAX_SCANNED // _PIXELS_A_SCAN and (found := _MARKER.search(data, at)):
        marker, at = data[found.end() - 1], found.end()
        if marker == _EOI:
            break
        scans += marker == _SOS
        if marker not in _ALONE and at + 2 <= len(data):
            at += _big(data, at)
    return scans


def _count_all_scans(data: _Data) -> int:
    """Scans of the JPEGs inside another file."""
    at = scans = 0
    while (at := data.find(b"\xff\xda", at) + 2) > 1:
        scans += 1
    return scans


def _count_chunks(data: _Data) -> int:
    at, count = 8, 0
    while count <= _MAX_PARTS and at + 8 <= len(data):
        at += 12 + struct.unpack_from(">I", data, at)[0]
        count += 1
    return count


def _count_blocks(data: _Data) -> int:
    """Blocks of a GIF before its first image."""
    flags = data[10] if len(data) > 10 else 0
    at, count = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0), 0
    while count <= _MAX_PARTS and at < len(data) and data[at] not in b",;":
        more = data[at] == ord("!")  # an extension, in blocks up to an empty one
        at += 2 if more else 1
        count += 1
        while more and count <= _MAX_PARTS and at < len(data):
            more = data[at] > 0
            at += 1 + data[at]
            count += 1
    return count


def _big(data: _Data, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")
