"""Text that people read: made safe for where it goes (a terminal, a page, CSV, a shell, an error),
counts, sizes and durations in words, and what a misspelled name probably means."""

import json
import math
import re
import reprlib
import shlex
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
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


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def list_some(names: Sequence[str], most: int = 8) -> str:
    """ "a, b, c and 1,204 more": names the first `most`."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def bytes_text(count: float) -> str:
    """Three significant digits: "512 bytes", "1.31 kB", "812 MB", "24.5 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return counted(round(count), "byte")


def duration_text(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 90:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def step_text(seconds: float) -> str:
    """A duration that may be tiny, no more exact than it was measured: "8.3 µs", "2.1 ms", "1.4 s",
    then as `duration_text`."""
    if seconds >= 10:
        return duration_text(seconds)
    if seconds <= 0:
        return "0 s"
    unit, size = next((pair for pair in _UNITS if seconds >= pair[1]), _UNITS[-1])
    value = seconds / size
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def rate_text(per_second: float, noun: str = "samples") -> str:
    """A rate in three significant digits, no more precise than it was measured: "12.3 samples/s",
    "12,300 samples/s"."""
    if per_second < 100:
        return f"{three_digits(per_second)} {noun}/s"
    digits = len(str(int(per_second))) - 3
    return f"{round(per_second, -digits):,.0f} {noun}/s"


def three_digits(value: float) -> str:
    """0.0021, 1.31, 61.2, 2,410."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def whole_percent(share: float) -> str:
    """Truncated, not rounded: what does not reach 60% is not shown as 60%. With one decimal near
    the top, and 100% only if exact."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{_cut(share, 1 if 0.99 < share < 1 else 0):g}%"


def tenth_percent(share: float) -> str:
    """Rounded, but truncated near the top: 99.96% is not 100%."""
    return f"{_cut(share, 1) if 0.999 <= share < 1 else 100 * share:.1f}%"


def _cut(share: float, places: int) -> float:
    """A fraction as percent, cut to `places` decimals; 0.29 * 100, which is slightly below 29,
    counts as 29."""
    parts = math.floor(round(100 * share * 10**places, 6))
    most = 100 * 10**places - (share < 1)
    return min(parts, most) / 10**places


_EXTENSION = re.compile(r"\.[A-Za-z]{2,7}")


def split_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """ "a, B" as ("a", "b"): names in lower case; dashes may stand for underscores."""
    parts = given.split(",") if isinstance(given, str) else given
    names = (part.strip().lower().replace("-", "_") for part in parts)
    return tuple(name for name in names if name)


def find_close(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` probably means, regardless of case; None if none is close."""
    by_plain = {one.casefold(): one for one in known}
    close = get_close_matches(name.casefold(), by_plain, n=1, cutoff=0.75)
    return by_plain[close[0]] if close else None


def suggest(name: str, known: Iterable[str]) -> str:
    """' (did you mean "linear_probe"?)', or "" if no known name is close."""
    close = find_close(name, known)
    return f' (did you mean "{close}"?)' if close else ""


def looks_like_path(name: str) -> bool:
    """Whether a name that does not exist is a mistyped path rather than an id on the Hub, which has
    at most one slash and rarely an extension."""
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        return True
    path = Path(name)
    return bool(_EXTENSION.fullmatch(path.suffix)) and ("/" not in name or path.parent.is_dir())


def suggest_path(name: str) -> str:
    """As `suggest`, for a path that does not exist: the closest name in the same folder."""
    path = Path(name).expanduser()
    if not path.parent.is_dir():
        return ""
    close = find_close(path.name, sorted(one.name for one in path.parent.iterdir()))
    return f' (did you mean "{path.with_name(close)}"?)' if close else ""
