"""Text from files and other people, made safe for where it goes: a terminal, a page, a cell of a
CSV file, a command to copy, an error message. The one place for each."""

import json
import re
import reprlib
import shlex
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import Any

# Control characters, lone surrogates, and the characters that reorder or hide text: bidirectional
# controls, line and paragraph separators, the byte order mark, tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# Not allowed in HTML, escaped or not, and what would reorder a page's own text beside it.
_UNSAFE_ON_PAGES = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_NUMBER = re.compile(r"[+-]?(\d++\.?\d*+|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.ASCII)
# What a spreadsheet would run as a formula, after any apostrophes: another one must be removable.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_ESCAPE = r"u[0-9a-f]{4}|U[0-9a-f]{8}"
# An unsafe character, or text that looks like the escape of one, with all backslashes before it.
# Each run of backslashes is tried once: trying again from each of them takes hours for millions.
_TO_ESCAPE = re.compile(rf"(?<!\\)(?:(\\*+)({_UNSAFE.pattern})|(\\++)({_ESCAPE}))")
_ESCAPED = re.compile(rf"(?<!\\)(\\++)({_ESCAPE})")
_MAX_ITEMS, _MAX_CHARACTERS, _LONGEST_INT = 4, 80, 10**30


def for_terminal(text: object, *, lines: bool = False) -> str:
    """Text that cannot move the cursor, color, reorder or hide what a terminal shows: unsafe
    characters are escaped as in JSON. `lines` keeps newlines."""
    safe = _UNSAFE.sub(lambda found: _escape(found[0]), str(text))
    return safe if lines else safe.replace("\n", "\\n")


def for_page(text: str) -> str:
    """Text that HTML can contain and that cannot reorder what stands beside it; still to be
    escaped."""
    return _UNSAFE_ON_PAGES.sub("\N{REPLACEMENT CHARACTER}", text)


def is_sendable(text: str) -> bool:
    """Whether a text, such as an API key, may be the value of an HTTP header."""
    return _PRINTABLE.fullmatch(text) is not None


def for_json(text: str) -> str:
    """The same JSON, safe for a terminal: unsafe characters in its strings are escaped."""
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def for_csv(text: str) -> str:
    """Text that a spreadsheet shows instead of running it as a formula: it gets an apostrophe in
    front. Numbers stay as they are. `from_csv` undoes it."""
    safe = _TO_ESCAPE.sub(_escape_for_csv, text)
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{safe}" if is_formula else safe


def from_csv(cell: str) -> str:
    """The text that `for_csv` made this cell of."""
    if cell.startswith("'") and _FORMULA.match(_ESCAPED.sub(_unescape_for_csv, cell)):
        cell = cell[1:]
    return _ESCAPED.sub(_unescape_for_csv, cell)


def for_shell(words: Iterable[object]) -> str:
    """A command to copy into a shell, on one line; words with control characters are quoted as
    `$'...'`. A path that starts like an option gets "./" in front."""
    return " ".join(map(_quote, words))


def quoted(text: str) -> str:
    """The text as a string in double quotes on one line, as Python, TOML and, for most texts, JSON
    read it."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), json.dumps(text, ensure_ascii=False))


def shortened(value: object) -> str:
    """The representation of a value of any size and depth, in about 200 characters."""
    return for_terminal(_SHORT.repr(value))[:400]


class _Short(reprlib.Repr):
    """Looks at a few items of each container and nothing else: sorting a dict, or showing all of an
    array or of an integer, could take minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = _MAX_ITEMS
        self.maxstring = self.maxother = _MAX_CHARACTERS

    def repr_int(self, value: int, level: int) -> str:
        if abs(value) >= _LONGEST_INT:
            return f"an integer of {value.bit_length():,} bits"
        return super().repr_int(value, level)

    def repr_dict(self, value: Mapping[Any, Any], level: int) -> str:
        return super().repr_dict(dict(islice(value.items(), _MAX_ITEMS + 1)), level)

    def repr_set(self, value: Set[Any], level: int) -> str:
        return super().repr_set(set(islice(value, _MAX_ITEMS + 1)), level)

    def repr_frozenset(self, value: Set[Any], level: int) -> str:
        return super().repr_frozenset(frozenset(islice(value, _MAX_ITEMS + 1)), level)

    def repr_instance(self, value: Any, level: int) -> str:
        if isinstance(value, str | bytes | bytearray) and len(value) > _MAX_CHARACTERS:
            return f"{value[:_MAX_CHARACTERS]!r}..."
        if shape := getattr(value, "shape", ()):
            return f"<{type(value).__name__} of shape {shape}>"
        return super().repr_instance(value, level)


_SHORT = _Short()


def _quote(given: object) -> str:
    word = str(given)
    if isinstance(given, Path) and word.startswith("-"):
        word = f"./{word}"
    if not _UNSAFE.search(word) and not re.search(r"[\n\t]", word):
        return shlex.quote(word)
    body = word.replace("\\", "\\\\").replace("'", "\\'")
    body = body.replace("\n", "\\n").replace("\t", "\\t")
    return f"$'{_UNSAFE.sub(_escape_for_shell, body)}'"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_for_csv(found: re.Match[str]) -> str:
    if found[2] is not None:
        return found[1] * 2 + _escape(found[2])
    slashes = found[3] * 2 if _is_unsafe(found[4]) else found[3]
    return slashes + found[4]


def _unescape_for_csv(found: re.Match[str]) -> str:
    slashes, escape = found[1], found[2]
    if not _is_unsafe(escape):
        return found[0]
    half = slashes[: len(slashes) // 2]
    return half + (chr(int(escape[1:], 16)) if len(slashes) % 2 else escape)


def _is_unsafe(escape: str) -> bool:
    """Whether "u001b" or "U000e0001" is what an unsafe character is escaped as."""
    code = int(escape[1:], 16)
    return code <= 0x10FFFF and bool(_UNSAFE.match(chr(code)))


def _escape_for_shell(found: re.Match[str]) -> str:
    # A lone surrogate stands for a byte of a file name that is not UTF-8.
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
