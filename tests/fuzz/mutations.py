"""Hostile edits of good files: bytes, JSON, and the files of a folder."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.engine.hostile_models import split

_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**60, 2**63 - 1, 2**63, -(2**63), 10**18, 10**400)
_TEXTS = (
    *("", " ", "..", "../outside", "/etc/passwd", "/dev/zero", "batch_0000.arrow", "x" * 10_000),
    *("\0", "\x1b[2J", "\u202e", "\ud800", "[red]:bomb:", "=1+1", "NaN", "-inf", "1e400", "null"),
)
_DEEP = "levels of lists: "


def hostile_value(chance: Random) -> Any:
    """A JSON value of any type and size."""
    make: tuple[Callable[[], Any], ...] = (
        *(lambda: _scalar(chance),) * 4,
        lambda: chance.choice(([], {}, [[]], [None], {"": 0})),
        lambda: f"{_DEEP}{chance.choice((5, 50, 5_000, 100_000))}",
        lambda: [_scalar(chance)] * chance.choice((1, 3, 100)),
        lambda: {chance.choice(_TEXTS): _scalar(chance) for _ in range(3)},
    )
    return chance.choice(make)()


def _scalar(chance: Random) -> Any:
    odd = (None, True, False, float("nan"), float("inf"), -0.0, 1e308, 5e-324, 0.5)
    return chance.choice(chance.choice((_NUMBERS, _TEXTS, odd)))


def edit_json(chance: Random, content: bytes) -> bytes:
    """One to three values replaced, removed, moved or doubled."""
    return edit_value(chance, json.loads(content))


def edit_header(chance: Random, content: bytes) -> bytes:
    """The JSON header of a safetensors file, and the JSON inside its metadata."""
    header, body = split(content)
    about = header.get("__metadata__", {})
    if about and chance.random() < 0.7:
        name = chance.choice(sorted(about))
        try:
            about[name] = edit_json(chance, about[name].encode()).decode()
        except ValueError:
            about[name] = str(hostile_value(chance))
        edited = json.dumps(header).encode()
    else:
        edited = edit_json(chance, json.dumps(header).encode())
    return len(edited).to_bytes(8, "little") + edited + body


def edit_value(chance: Random, value: Any) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = _edit(chance, value)
    return dump_json(value)


def dump_json(value: Any) -> bytes:
    """JSON, with lists deeper than Python's encoder can write."""
    text = json.dumps(value)
    return re.sub(f'"{_DEEP}(\\d+)"', lambda at: "[" * int(at[1]) + "]" * int(at[1]), text).encode()


def _edit(chance: Random, value: Any) -> Any:
    places = list(_places(value))
    if not places or chance.random() < 0.03:
        return hostile_value(chance)
    holder, key = chance.choice(places)
    edit = chance.choice(("replace", "replace", "remove", "swap", "double", "add"))
    if edit == "remove":
        del holder[key]
    elif edit == "swap":
        other, place = chance.choice(places)
        holder[key], other[place] = other[place], holder[key]
        if _is_cyclic(value):
            return hostile_value(chance)
    elif edit == "double" and isinstance(holder, list):
        holder.append(holder[key])
    elif edit == "add" and isinstance(holder, dict):
        holder[chance.choice((*_TEXTS, "sources"))] = hostile_value(chance)
    else:
        holder[key] = hostile_value(chance)
    return value


def _places(value: Any) -> Any:
    """Every (container, key) below a value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _is_cyclic(value: Any) -> bool:
    try:
        json.dumps(value)
    except (ValueError, RecursionError):
        return True
    return False


def edit_bytes(chance: Random, content: bytes) -> bytes:
    """Flips, cuts, insertions, doubled parts, and integers replaced by extreme ones."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        edit = chance.choice(("flip", "flip", "integer", "integer", "cut", "insert", "move"))
        if edit == "flip" and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif edit == "integer":
            _write_integer(chance, data, at)
        elif edit == "cut":
            del data[at : at + chance.choice((1, 8, 64, len(data)))]
        elif edit == "insert":
            data[at:at] = chance.randbytes(chance.choice((1, 8, 64)))
        else:
            data[at:at] = data[: chance.choice((8, 64, 1024))]
    return bytes(data)


def _write_integer(chance: Random, data: bytearray, at: int) -> None:
    """At a multiple of 4 or 8, as the fields of Arrow, TIFF and safetensors lie."""
    size, form = chance.choice(((2, "<H"), (4, "<I"), (4, ">I"), (8, "<Q")))
    at -= at % size
    number = chance.choice(_NUMBERS[:-1]) % (1 << 8 * size)
    data[at : at + size] = struct.pack(form, number)


def edit_file(chance: Random, path: Path, edit: Callable[[Random, bytes], bytes]) -> None:
    content = edit(chance, path.read_bytes())
    path.unlink()  # it may be a hard link to a good file
    path.write_bytes(content)


def replace_entry(chance: Random, path: Path, others: list[Path], outside: Path) -> None:
    """Something else in a file's place: nothing, a link, a folder, a pipe, another file."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    make: tuple[Callable[[], object], ...] = (
        lambda: None,
        path.mkdir,
        path.touch,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(outside),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.write_bytes(chance.choice(others).read_bytes()),
        lambda: os.link(chance.choice(others), path),
    )
    chance.choice(make)()
