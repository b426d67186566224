"""Edited model files: every kind of damage and malice that a safetensors file with a description
can have, one by one."""

import copy
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Header = dict[str, Any]
Edit = Callable[[Path], None]

_DEEP = json.loads("[" * 100 + "]" * 100)
ODD_VALUES: dict[str, Any] = {
    "null": None,
    "text": "0.5",
    "empty text": "",
    "list": [1],
    "dict": {"a": 1},
    "huge": 10**30,
    "billion": 10**9,
    "negative": -1,
    "zero": 0,
    "NaN": math.nan,
    "infinity": math.inf,
    "true": True,
    "deep": _DEEP,
    "long": "x\n" * 10_000,
    "surrogate": "\ud800",
}
_DTYPES = {"I8": 1, "F64": 8, "BOOL": 1, "F8_E4M3": 1, "I64": 8, "F16": 2, "U8": 1}


def split(data: bytes) -> tuple[Header, bytes]:
    """The header of a safetensors file, and the bytes of its tensors. The header has no checksums,
    for which every edit would be refused."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if about := header.get("__metadata__"):
        described = json.loads(about["clew"])
        for name in ("tensor_checksums", "clew_checksum"):
            described.pop(name, None)
        about["clew"] = json.dumps(described)
    return header, data[8 + length :]


def join(header: Header, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def with_about(data: bytes, change: Callable[[Any], Any]) -> bytes:
    header, body = split(data)
    about = json.loads(header["__metadata__"]["clew"])
    header["__metadata__"]["clew"] = json.dumps(change(about))
    return join(header, body)


def paths_of(value: Any, depth: int = 4) -> Iterator[tuple[Any, ...]]:
    """The places of all entries of a description."""
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value[:1]))
    for key, inner in entries if depth else ():
        yield (key,)
        yield from ((key, *rest) for rest in paths_of(inner, depth - 1))


def replaced(about: Any, path: tuple[Any, ...], value: Any = ...) -> Any:
    """A copy with another value at `path`, or without the entry."""
    about = copy.deepcopy(about)
    place = about
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return about


def about_edits(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every entry of the description missing, and replaced by every odd value."""
    header, _ = split(data)
    about = json.loads(header["__metadata__"]["clew"])
    for path in paths_of(about):
        name = ".".join(map(str, path))
        yield f"{name} missing", with_about(data, lambda old, at=path: replaced(old, at))
        for kind, value in ODD_VALUES.items():
            yield (
                f"{name} {kind}",
                with_about(data, lambda old, at=path, new=value: replaced(old, at, new)),
            )
    for kind, value in ODD_VALUES.items():
        yield f"description {kind}", with_about(data, lambda _, new=value: new)


def tensor_edits(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Other types, shapes, offsets and values of the first tensors of each kind."""
    header, body = split(data)
    names = [name for name in header if name != "__metadata__"]
    for name in (names[0], names[-1]):
        about = header[name]
        first, end = about["data_offsets"]

        def changed(at: str = name, **parts: Any) -> bytes:
            return join({**header, at: {**header[at], **parts}}, body)

        for dtype, size in _DTYPES.items():
            yield f"{name} {dtype}", changed(dtype=dtype)
            yield f"{name} {dtype} of its size", changed(dtype=dtype, shape=[(end - first) // size])
        shapes = ([], [0], about["shape"][::-1], [*about["shape"], 1], [2**40], [-1], [2**63, 2])
        for shape in shapes:
            yield f"{name} shape {shape}", changed(shape=shape)
        yield f"{name} offset", changed(data_offsets=[first, end + 4])
        yield f"{name} offset beyond", changed(data_offsets=[2**60, 2**61])
        yield f"{name} missing", join({k: v for k, v in header.items() if k != name}, body)
        yield f"{name} doubled", join({**header, "extra": about}, body)
        yield f"{name} renamed", join({k + "x" * (k == name): v for k, v in header.items()}, body)
        for bits in (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"):
            count = (end - first) // 4
            yield f"{name} {bits.hex()}", join(header, body[:first] + bits * count + body[end:])
            spoiled = body[: end - 4] + bits + body[end:]
            yield f"{name} ends in {bits.hex()}", join(header, spoiled)
        huge = b"\xff\xff\x7f\x7f" * ((end - first) // 4)
        yield f"{name} huge", join(header, body[:first] + huge + body[end:])
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(body), len(body)]}
    yield "empty tensor more", join({**header, "extra": empty}, body)
    yield "many tensors more", join({**header, **{f"extra{n}": empty for n in range(9999)}}, body)


def byte_edits(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Truncated files, lying lengths and flipped bits."""
    for kept in (0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        yield f"first {kept} bytes", data[:kept]
    for length in (0, 1, len(data), 2**32, 2**60, 2**64 - 1):
        yield f"header of {length}", length.to_bytes(8, "little") + data[8:]
    yield "more behind", data + b"\0" * 100
    header, body = split(data)
    for name, about in (("none", None), ("numbers", {"clew": 5}), ("other", {"a": "b"})):
        yield f"metadata {name}", join({**header, "__metadata__": about}, body)
    for name, text in (("cut", '{"a'), ("deep", "[" * 100_000), ("list", "[]"), ("text", '"a"')):
        yield f"description {name}", join({**header, "__metadata__": {"clew": text}}, body)
    at = random.Random(0)
    for _ in range(40):
        yield "flipped bits", flip(data, at)


def flip(data: bytes, source: random.Random, most: int = 2000) -> bytes:
    """The same with one bit flipped, mostly in the header."""
    changed = bytearray(data)
    where = source.randrange(min(len(data), most) if source.random() < 0.7 else len(data))
    changed[where] ^= 1 << source.randrange(8)
    return bytes(changed)


def other_files() -> Iterator[tuple[str, Edit]]:
    """What may lie in a file's place."""
    yield "fifo", os.mkfifo
    yield "folder", Path.mkdir
    yield "loop", lambda path: path.symlink_to(path)
    yield "dangling link", lambda path: path.symlink_to("nowhere")
    yield "device", lambda path: path.symlink_to("/dev/zero")
    yield "sparse", lambda path: (path.touch(), os.truncate(path, 2**40))[0]
