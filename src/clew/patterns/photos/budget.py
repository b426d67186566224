"""What decoding a photo would cost, from its header alone: the bytes that it takes in memory, and
the steps that its decoder makes. A small file may ask for gigabytes, or for minutes."""

import io
import math
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO

from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

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


class TooExpensiveError(Exception):
    """Decoding a photo would take too much memory or time; the text says why."""


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


def refuse_many_parts(file: BinaryIO, name: str) -> None:
    """Raises TooExpensiveError for a file of that format with so many parts before its pixels that
    reading them would take minutes; a damaged one is left to its reader."""
    count = {"JPEG": _count_segments, "PNG": _count_chunks, "GIF": _count_blocks}.get(name)
    if count is None:
        return
    with _contents(file) as data:
        if count(data) > _MAX_PARTS:
            raise TooExpensiveError(f"it consists of more than {_MAX_PARTS:,} parts")


@contextmanager
def _contents(file: IO[bytes]) -> Iterator[_Data]:
    """All bytes of a file on disk or in memory, without a copy."""
    if isinstance(file, io.BytesIO):
        yield file.getvalue()
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def refuse_slow(image: ImageFile, sides: tuple[int, int], *, kept_whole: bool) -> None:
    """Raises TooExpensiveError for an image whose decoder would take minutes; arguments as for
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
            raise TooExpensiveError(f"its {scans:,} scans would take too long to decode")


def _refuse_long_runs(image: BmpImageFile) -> None:
    if image.fp is None or not any(tile.codec_name == "bmp_rle" for tile in image.tile):
        return
    place = image.fp.tell()
    length = image.fp.seek(0, 2)
    image.fp.seek(place)
    if max(math.prod(image.size), length) > _MAX_RLE:
        raise TooExpensiveError("it is a run-length encoded BMP, which would take too long")


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
