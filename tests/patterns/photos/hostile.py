"""Photos that ask for too much: small files that would take gigabytes or minutes to decode."""

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from PIL import Image

from tests.patterns.photos.making import encode, picture, resized_header

Maker = Callable[[], bytes]


def wide_tiff(mode: str, width: int = 10_000, height: int = 9_999) -> bytes:
    """A compressed TIFF of `mode` F or I, four bytes per pixel, without making its pixels."""
    bits, kind = {"F": (32, 3), "I": (32, 2), "I;16": (16, 1)}[mode]
    rows = 100
    strip = zlib.compress(bytes(width * rows * bits // 8), 9)
    last = zlib.compress(bytes(width * (height % rows or rows) * bits // 8), 9)
    count = -(-height // rows)
    return _tiff(
        {256: width, 257: height, 258: bits, 259: 8, 262: 1, 277: 1, 278: rows, 339: kind},
        [strip] * (count - 1) + [last],
    )


def tiled_tiff(side: int = 30_000) -> bytes:
    """A small image in one tile of `side` x `side` pixels."""
    tile = zlib.compress(bytes(1000), 9)
    tags = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side}
    return _tiff(tags, [tile], tiled=True)


def _tiff(tags: dict[int, int], parts: list[bytes], *, tiled: bool = False) -> bytes:
    """A little-endian TIFF; equal parts are stored once."""
    body, places = bytearray(b"II*\0\0\0\0\0"), {}
    for part in parts:
        if part not in places:
            places[part] = len(body)
            body += part
    lists = {
        324 if tiled else 273: [places[part] for part in parts],
        325 if tiled else 279: [len(part) for part in parts],
    }
    entries = {tag: struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()}
    for tag, values in lists.items():
        value = values[0] if len(values) == 1 else len(body)
        entries[tag] = struct.pack("<HHII", tag, 4, len(values), value)
        body += struct.pack(f"<{len(values)}I", *values) if len(values) > 1 else b""
    body[4:8] = struct.pack("<I", len(body))
    body += struct.pack("<H", len(entries)) + b"".join(entries[tag] for tag in sorted(entries))
    return bytes(body + bytes(4))


def many_scans(scans: int, side: int = 9_000) -> bytes:
    """A progressive JPEG of `side` x `side` pixels whose last scan is repeated."""
    data = resized_header(encode(picture(16, 16), "JPEG", progressive=True), side, side)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def many_scans_in_a_tiff(scans: int, side: int = 9_000) -> bytes:
    strip = many_scans(scans, side)
    tags = {256: side, 257: side, 258: 8, 259: 7, 262: 6, 277: 3, 278: side}
    return _tiff(tags, [strip])


def many_segments(count: int, kind: bytes = b"\xff\xfe\0\2") -> bytes:
    data = encode(picture(), "JPEG")
    return data[:2] + kind * count + data[2:]


def many_chunks(count: int) -> bytes:
    data = encode(picture(), "PNG")
    empty = struct.pack(">I", 0) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))
    return data[:33] + empty * count + data[33:]


def many_blocks(count: int) -> bytes:
    data = encode(picture().convert("P"), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1)
    return data[:start] + b"!\xfe" + b"\1a" * count + b"\0" + data[start:]


def run_lengths(side: int = 4_000) -> bytes:
    """A run-length encoded BMP, which Pillow decodes in Python."""
    palette = bytes(1024)
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 4, 0, 0, 256, 0)
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + 4, 0, 0, start) + header + palette + b"\1\1\0\1"


def exif_bomb() -> bytes:
    """EXIF data whose entries all point to the same bytes."""
    count, size = 2_700, 32_000
    entry = [struct.pack("<HHII", 40_000 + n, 7, size, 8) for n in range(count)]
    table = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", count) + b"".join(entry) + bytes(4)
    segment = b"Exif\0\0" + table + bytes(200)
    data = encode(picture(), "JPEG")
    head = b"\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment
    return data[:2] + head * 8 + data[2:]


def text_bomb() -> bytes:
    """A PNG with a compressed text of 20 MB."""
    packer = zlib.compressobj(9)
    text = b"".join(packer.compress(bytes(10**6)) for _ in range(20)) + packer.flush()
    body = b"zTXt" + b"a\0\0" + text
    data = encode(picture(), "PNG")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return data[:33] + chunk + data[33:]


def animation(kind: str, frames: int = 300) -> bytes:
    images = [Image.new("L", (16, 16), n % 256) for n in range(frames)]
    buffer = io.BytesIO()
    images[0].save(buffer, kind, save_all=True, append_images=images[1:])
    return buffer.getvalue()


# Each must be refused as "too large".
BOMBS: dict[str, Maker] = {
    "float.tif": lambda: wide_tiff("F"),
    "int.tif": lambda: wide_tiff("I"),
    "tile.tif": tiled_tiff,
    "scans.jpg": lambda: many_scans(400),
    "small scans.jpg": lambda: many_scans(25_000, 8),
    "scans.tif": lambda: many_scans_in_a_tiff(400),
    "comments.jpg": lambda: many_segments(250_000),
    "padding.jpg": lambda: many_segments(250_000, b"\xff"),
    "chunks.png": lambda: many_chunks(250_000),
    "blocks.gif": lambda: many_blocks(250_000),
    "runs.bmp": run_lengths,
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """Good photos of every format, to start fuzzing from."""
    yield "a.jpg", encode(picture(), "JPEG")
    yield "b.jpg", encode(picture(), "JPEG", progressive=True)
    yield "c.png", encode(picture(), "PNG")
    yield "d.gif", encode(picture().convert("P"), "GIF")
    yield "e.bmp", encode(picture(), "BMP")
    for compression in ("raw", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "packbits"):
        yield f"{compression}.tif", encode(picture(), "TIFF", compression=compression)
    yield "f.webp", encode(picture(), "WEBP")
    yield "g.tif", wide_tiff("F", 40, 30)
    yield "h.tif", wide_tiff("I;16", 40, 30)


def mutate(data: bytes, source: random.Random) -> bytes:
    """Flipped bits, odd numbers, cut and doubled pieces."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 4)):
        where = source.randrange(min(len(changed), 400) if source.random() < 0.6 else len(changed))
        roll = source.random()
        if roll < 0.4:
            changed[where] ^= 1 << source.randrange(8)
        elif roll < 0.7:
            odd = source.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\0\0\x30\x00"])
            changed[where : where + 4] = odd
        elif roll < 0.85:
            piece = changed[where : where + source.randint(1, 200)]
            changed[where:where] = piece * source.randint(1, 50)
        else:
            del changed[where : where + source.randint(1, 50)]
        changed = changed or bytearray(b"\0")
    return bytes(changed)
