"""Which names may become folders and files of a set."""

import re
import unicodedata
from pathlib import Path, PurePath, PurePosixPath

from clew.base.errors import InputError
from clew.base.texts import for_terminal
from clew.patterns.photos.photo import SUFFIXES

# File systems allow 255 bytes; a number and a temporary suffix must still fit.
_MAX_BYTES = 180
# Control characters, separators, lone surrogates, and characters that reorder or hide text.
_BAD = re.compile(
    r"[\x00-\x1f\x7f-\x9f/\\\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_SHOWN_CHARACTERS = 60


def check_set_name(name: str) -> str:
    """The name as used for the folder; raises InputError for an invalid one."""
    return _check(name, "name of a set")


def check_class_name(label: str) -> str:
    """The class as used for its folder; raises InputError for an invalid one."""
    return _check(label, "name of a class")


def lies_inside(name: str) -> bool:
    """Whether a path that somebody else may have written leads to a file below the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def check_photo_name(path: Path) -> None:
    """Raises InputError for a file whose name does not look like a photo's."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f'"{path}" does not have a photo extension (.jpg, .png, ...): rename it first.'
        )


def safe_file_name(name: str) -> str:
    """A photo's own name, without characters that a file system may refuse; the extension stays."""
    path = PurePath(_BAD.sub("_", unicodedata.normalize("NFC", name)).lstrip(". ") or "photo")
    stem = path.stem.encode("utf-8")[:_MAX_BYTES].decode("utf-8", "ignore").rstrip(". ")
    return (stem or "photo") + path.suffix


def _check(text: str, what: str) -> str:
    name = unicodedata.normalize("NFC", text).strip()
    wrong = _what_is_wrong(name)
    if wrong is not None:
        raise InputError(
            f'"{_shown(text)}" cannot be the {what}: {wrong}. It is used as a folder name: use '
            "letters, digits, spaces, - and _."
        )
    return name


def _shown(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return for_terminal(short)


def _what_is_wrong(name: str) -> str | None:
    found = _BAD.search(name)
    if not name:
        return "it is empty"
    if found is not None:
        sign = found[0]
        return (
            f'it contains "{sign}"' if sign.isprintable() else "it contains an invisible character"
        )
    if name.startswith(".") or name.endswith("."):
        return "it starts or ends with a dot"
    if len(name.encode("utf-8")) > _MAX_BYTES:
        return f"it is {len(name):,} characters long"
    return None
